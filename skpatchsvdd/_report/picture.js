"use strict";
// What the report and the live page share: the map over an image, with its switch and its
// legend, words about numbers, and the keys.
const KEYS = [["n", "next alarm"], ["p", "previous"], ["g", "good"], ["s", "similar"], ["d", "defective"],
  ["b", "boxes"], ["u", "undo"], ["m", "map"]];
const LIGHT = [255, 255, 255], DARK = [20, 20, 20], TRUE = [0, 180, 255];
const mapView = { isOn: false, opacity: 65, change() {} };

const count = (n, one, several = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : several}`;

// What the bytes of a map stand for, as multiples of the threshold.
const readByte = (byte) => byte === 0 ? 0 : 2 ** (byte / 255 * 8 - 4);

// Gives a pixel the colour of a multiple of the threshold: none up to a half, yellow at 1, red from 2 on.
function colour(p, i, multiple, opacity) {
  const share = Math.min(Math.max(multiple - 1, 0), 1);
  p[i] = 255; p[i + 1] = 200 * (1 - share); p[i + 2] = 0;
  p[i + 3] = 255 * opacity * Math.min(Math.max(2 * multiple - 1, 0), 1);
}

const opacityOfMap = () => mapView.isOn ? mapView.opacity / 100 : 0;

function setMap(change) {
  Object.assign(mapView, change);
  document.querySelectorAll(".maptools").forEach(fillMapTools);
  mapView.change();
}

function showMapTools() {
  const tools = document.createElement("span");
  tools.className = "maptools";
  tools.innerHTML = '<button>Map <kbd>m</kbd></button><input type="range" min="5" max="100" aria-label="opacity of the map">'
    + '<span class="legend"><span><i></i><b>0.5</b><b>1</b><b>2</b></span> × the threshold</span>';
  const [button, slider] = tools.children;
  button.title = "the map over the image, and how far from normal its colours are";
  button.onclick = (e) => { e.stopPropagation(); setMap({ isOn: !mapView.isOn }); };
  slider.oninput = () => setMap({ isOn: true, opacity: +slider.value });
  fillMapTools(tools);
  return tools;
}

function fillMapTools(tools) {
  const [button, slider] = tools.children;
  button.setAttribute("aria-pressed", mapView.isOn);
  slider.value = mapView.opacity;
  tools.classList.toggle("off", !mapView.isOn);
}

// At its least p only says how many normal images there are.
const tellP = (p, floor) => floor ? `p = ${p.toFixed(3)} at most, with ${floor}: none of them looks as abnormal.`
  : `p = ${p.toFixed(3)}: about that share of normal images looks at least as abnormal.`;

// Patches of an image, each beside the normal one that is nearest to it.
function showPairs(matches) {
  const pairs = document.createElement("div");
  pairs.className = "pairs";
  pairs.append(...matches.map(showPair));
  return pairs;
}

function showPair(match) {
  const pair = document.createElement("div");
  pair.className = "pair";
  for (const [uri, caption] of [[match.patch, `this image, patch of ${match.size} pixels as inspected`], [match.normal, `nearest normal: ${match.from}`]]) {
    const figure = document.createElement("figure"), image = document.createElement(uri ? "img" : "div"), text = document.createElement("figcaption");
    if (uri) { image.src = uri; image.alt = caption; } else { image.className = "gone"; image.textContent = "no picture"; }
    text.textContent = caption;
    figure.append(image, text);
    pair.append(figure);
  }
  return pair;
}
