"use strict";
const $ = (id) => document.getElementById(id);
const SECOND = 1000, LOST = 6;
let run = null, state = null, heard = Date.now(), asked = 0, failed = "", skew = 0;

const make = (tag, name, text) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};
const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

function tellAge(seconds) {
  if (seconds < 90) return `${Math.max(Math.round(seconds), 0)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

const WORDS = { running: "running", opening: "being opened", broken: "broken" }, BADGES = { running: "normal", opening: "unreadable", broken: "abnormal" };

function showLine(line) {
  const item = make("li", `line ${line.state}${line.waiting ? " waits" : ""}`), head = make("h2");
  // A line that was never open has no page.
  const name = line.counts ? make("a", "", line.name) : make("span", "", line.name);
  if (line.counts) name.href = line.url;
  head.append(name, " ", make("span", `badge ${BADGES[line.state]}`, WORDS[line.state]));
  item.append(head);
  if (line.reason) item.append(make("p", "why", line.reason));
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
  link.setAttribute("aria-label", `${line.name}: the newest image`);
  if (!last) { link.append(make("span", "blank", "no image yet")); return link; }
  if (last.pictures) {
    const picture = make("img");
    picture.src = `${last.pictures}/overlay`;
    picture.alt = last.name;
    link.append(picture);
  } else link.append(make("span", "blank", "cannot be read"));
  const age = tellAge((Date.now() + skew) / SECOND - last.time);
  link.append(make("span", "text quiet", `${last.verdict}, ${age} ago`));
  return link;
}

// What has changed is drawn anew, so that what has the focus keeps it.
function show() {
  const waiting = state.lines.reduce((n, x) => n + (x.waiting || 0), 0), broken = state.lines.filter((x) => x.state === "broken").length;
  $("status").textContent = `${count(state.lines.length, "line")}, ${count(waiting, "alarm")} to look at${broken ? `, ${broken} broken` : ""}`;
  $("sign-out").hidden = !state.has_token;
  $("trouble").hidden = !state.trouble;
  $("trouble").textContent = state.trouble || "";
  const box = $("lines");
  const former = new Map([...box.children].map((x) => [x.dataset.name, x]));
  const items = state.lines.map((line) => {
    const known = former.get(line.name), age = line.last ? tellAge((Date.now() + skew) / SECOND - line.last.time) : "", key = JSON.stringify([line, age]);
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
}

async function follow() {
  asked = Date.now();
  try {
    const answer = await fetch("api/lines", { signal: AbortSignal.timeout(30 * SECOND) });
    if (answer.status === 401) { location.href = "/login"; return; }
    if (!answer.ok) throw new Error(answer.statusText);
    const date = Date.parse(answer.headers.get("date"));
    if (date) skew = date - Date.now(); // of the server's clock
    state = await answer.json();
    if (run !== null && run !== state.run) { location.reload(); return; }
    run = state.run;
    heard = Date.now();
    failed = "";
    show();
  } catch (error) { failed = error.message; }
  asked = 0;
  tick();
  setTimeout(follow, document.hidden ? 5 * SECOND : SECOND);
}

// Each second, whether or not the server answers: a dead one must not look alive.
function tick() {
  const isLost = failed || (asked && Date.now() - asked > LOST * SECOND);
  $("lost").hidden = !isLost;
  document.body.classList.toggle("is-lost", Boolean(isLost));
  if (isLost) $("lost").textContent = `The server has not answered since ${new Date(heard).toLocaleTimeString()}${failed ? ` (${failed})` : ""}. What is shown is of then.`;
  const waiting = state ? state.lines.reduce((n, x) => n + (x.waiting || 0), 0) : 0;
  document.title = isLost ? "⚠ No answer · Station" : `${waiting ? `(${waiting}) ` : ""}Station`;
}

follow();
setInterval(tick, SECOND);
