"use strict";
const WORDS = { running: "running", opening: "being opened", broken: "broken" }, BADGES = { running: "normal", opening: "unreadable", broken: "abnormal" };

function showLine(line) {
  const item = make("li", `line ${line.state}${line.waiting ? " waits" : ""}`), head = make("h2");
  // A line that was never open has no page.
  const name = line.counts ? make("a", "", line.name) : make("span", "", line.name);
  if (line.counts) name.href = line.url;
  const isStill = line.state === "running" && line.standstill;
  head.append(name, " ", make("span", `badge ${isStill ? "unreadable" : BADGES[line.state]}`, isStill ? "stands still" : WORDS[line.state]));
  item.append(head);
  const why = line.reason || tellStill(line);
  if (why) item.append(make("p", "why", why));
  if (!line.counts) return item;
  item.append(make("p", line.waiting ? "badge abnormal" : "quiet", line.waiting ? `${count(line.waiting, "alarm")} to look at` : "no alarm waits"));
  item.append(showLast(line));
  const { images, alarms } = line.hour;
  item.append(make("p", "quiet", images ? `last hour: ${count(images, "image")}, ${count(alarms, "alarm")}, ${((100 * alarms) / images).toFixed(1)}%` : "last hour: no images"));
  if (line.drift.drifted) item.append(make("p", "drift drifted", "⚠ the scores of the last hour have drifted: its page says how"));
  if (line.signals) item.append(make("p", "quiet", `${line.signals === 1 ? "1 signal waits" : `${line.signals} signals wait`}`));
  return item;
}

function showLast(line) {
  const last = line.last, link = make("a", "last");
  link.href = line.url;
  if (!last) { link.append(make("span", "blank", "no image yet")); return link; }
  if (last.pictures) {
    const picture = make("img");
    picture.src = `${last.pictures}/overlay`;
    picture.alt = `${line.name}, ${last.name}`;
    link.append(picture);
  } else link.append(make("span", "blank", "cannot be read"));
  link.append(make("span", "text quiet", `${last.verdict}, ${tellSince(last.time)} ago`));
  return link;
}

// What has changed is drawn anew, so that what has the focus keeps it.
function show() {
  const broken = state.lines.filter((x) => x.state === "broken").length, still = state.lines.filter((x) => x.state === "running" && x.standstill).length;
  const said = `${count(state.lines.length, "line")}, ${count(countWaiting(), "alarm")} to look at${broken ? `, ${broken} broken` : ""}${still ? `, ${still} standing still` : ""}`;
  if ($("status").textContent !== said) $("status").textContent = said;
  $("sign-out").hidden = !state.has_token;
  showTrouble(state.trouble || "");
  const box = $("lines");
  const former = new Map([...box.children].map((x) => [x.dataset.name, x]));
  const items = state.lines.map((line) => {
    const known = former.get(line.name), age = line.last ? tellSince(line.last.time) : "", key = JSON.stringify([line, age]);
    if (known && known.dataset.key === key) return known;
    const item = showLine(line);
    item.dataset.name = line.name;
    item.dataset.key = key;
    if (known && known.contains(document.activeElement)) {
      const i = [...known.querySelectorAll("a")].indexOf(document.activeElement);
      known.replaceWith(item);
      if (i >= 0 && item.querySelectorAll("a")[i]) item.querySelectorAll("a")[i].focus();
    } else if (known) known.replaceWith(item);
    return item;
  });
  items.forEach((x, i) => { if (box.children[i] !== x) box.insertBefore(x, box.children[i] || null); });
  [...box.children].slice(items.length).forEach((x) => x.remove());
  choose();
}

function choose() {
  const text = $("by-name").value.trim().toLowerCase(), items = [...$("lines").children];
  items.forEach((x) => { x.hidden = !x.dataset.name.toLowerCase().includes(text); });
  $("empty").hidden = !text || items.some((x) => !x.hidden);
}

const countWaiting = () => state.lines.reduce((n, x) => n + (x.waiting || 0), 0);
const PAGE = { path: "api/lines", show, name: () => "Station", waiting: countWaiting };
$("by-name").oninput = choose;
$("filter").onsubmit = (e) => e.preventDefault();
addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.target === $("by-name")) return;
  e.preventDefault();
  $("by-name").focus();
});
follow();
setInterval(tick, SECOND);
