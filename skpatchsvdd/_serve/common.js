"use strict";
// What the page of a line and that of all lines share. Each has `PAGE`: what it asks for,
// shows, and is called.
const $ = (id) => document.getElementById(id);
const SECOND = 1000;
// Seconds without an answer after which the page says so.
const LOST = 6;
let run = null, state = null, heard = Date.now(), asked = 0, failed = "", skew = 0;

const make = (tag, name, text) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};

async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, who: $("who").value.trim() || null }),
  };
  const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(30 * SECOND) });
  const date = Date.parse(answer.headers.get("date"));
  if (date) skew = date - Date.now(); // of the server's clock
  if (answer.status === 401) { location.href = "/login"; throw new Error("sign in"); }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(content.error || answer.statusText);
  return content;
}

function tellAge(seconds) {
  if (seconds < 90) return `${Math.max(Math.round(seconds), 0)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}
const tellSince = (time) => tellAge((Date.now() + skew) / SECOND - time);

function clock(t) {
  const then = new Date(t * SECOND), isToday = then.toDateString() === new Date().toDateString();
  return isToday ? then.toLocaleTimeString() : then.toLocaleString([], { dateStyle: "short", timeStyle: "short" });
}

// Why nothing comes, or no text. It changes seldom: it is read aloud when it does.
const tellStill = (line) => line.trouble || (line.standstill
  ? `No new image since ${clock(line.standstill.since)}${line.standstill.usual < 1 ? "" : `; before, one came about every ${tellAge(line.standstill.usual)}`}. Does the line run, and do its pictures arrive here?` : "");

function showTrouble(text) {
  $("trouble").hidden = !text;
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
}

async function follow() {
  asked = Date.now();
  try {
    state = await ask(PAGE.path);
    if (run !== null && run !== state.run) { location.reload(); return; } // it was started again
    run = state.run;
    await PAGE.show();
    heard = Date.now();
    failed = "";
  } catch (error) { failed = error.message; }
  asked = 0;
  tick();
  setTimeout(follow, document.hidden ? 5 * SECOND : SECOND);
}

// Each second, whether or not the server answers: a dead one must not look alive.
function tick() {
  const isLost = failed || (asked && Date.now() - asked > LOST * SECOND), name = state ? PAGE.name() : "";
  $("lost").hidden = !isLost;
  document.body.classList.toggle("is-lost", Boolean(isLost));
  if (isLost) $("lost").textContent = `The server has not answered since ${new Date(heard).toLocaleTimeString()}${failed ? ` (${failed})` : ""}. What is shown is of then.`;
  const waiting = state ? PAGE.waiting() : 0;
  if (state || isLost) document.title = isLost ? `⚠ No answer · ${name}` : `${waiting ? `(${waiting}) ` : ""}${name}`;
  PAGE.tick?.();
}
