"use strict";
// Cards that a page holds, before older ones are asked for again, of images and of alarms that wait, and pixels
// below it for which there are some.
const ROOM = 600, STRIP = 120, AHEAD = 600;
let revision = -1, only = "", chosen = "", images = new Map(), waiting = new Map(), current = null;
let detail = null, overlay = null, saids = [], boxes = [], newest = 0, drawn = null, isEnd = false, isLoading = false;

let toasting;
function toast(text) {
  (document.querySelector("dialog[open]") || document.body).append($("toast")); // above it
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toasting);
  toasting = setTimeout(() => { $("toast").hidden = true; }, 7 * SECOND);
}
const attempt = (work) => async (...args) => {
  try { await work(...args); } catch (error) { toast(error.message); }
};

// ---------------------------------------------------------------- cards
const times = (image) => image.score === null ? "" : `${Math.abs(image.score / image.threshold).toFixed(image.score / image.threshold < 10 ? 2 : 1)}\u00a0× threshold`;
// One place for the addresses of pictures.
const pictureOf = (image, name) => (image.pictures ? `${image.pictures}/${name}` : "");
const waits = (image) => image.verdict === "abnormal" && image.seen_at === null;

function fillCard(card, image) {
  card.className = `card ${image.verdict}${waits(image) ? " waits" : ""}`;
  card.dataset.id = image.id;
  card.replaceChildren();
  if (image.verdict === "unreadable") card.append(make("span", "blank", "cannot be read"));
  else {
    const picture = make("img");
    picture.loading = "lazy";
    picture.alt = image.name;
    picture.src = pictureOf(image, image.verdict === "abnormal" ? "overlay" : "thumb");
    picture.onerror = () => picture.replaceWith(make("span", "blank", "no picture"));
    card.append(picture);
  }
  const text = make("span", "text");
  text.append(make("span", `badge ${image.verdict}`, image.verdict), ` ${times(image)}`);
  if (image.kind) text.append(` ${image.kind}`);
  text.append(make("span", "name", image.name));
  const line = make("span", "quiet", clock(image.time));
  if (image.said) line.append(make("span", "mark", ` ${image.said.verdict === "good" ? "good" : "defective"}${image.applied ? " ✓" : ""}`));
  text.append(line);
  card.append(text);
}

function newCard(image) {
  const card = make("button", "card");
  fillCard(card, image);
  card.onclick = attempt(() => open(image.id));
  return card;
}

function place(box, map, image) {
  // Newest first: where it belongs by its number.
  const known = map.get(image.id);
  if (known) { fillCard(known, image); return; }
  const card = newCard(image);
  map.set(image.id, card);
  const last = box.lastElementChild;
  let next = last && Number(last.dataset.id) > image.id ? null : box.firstElementChild;
  while (next && Number(next.dataset.id) > image.id) next = next.nextElementSibling;
  box.insertBefore(card, next);
}

function take(image) {
  newest = Math.max(newest, image.time);
  if (image.is_chosen) place($("images"), images, image);
  else if (images.has(image.id)) { images.get(image.id).remove(); images.delete(image.id); }
  if (waits(image)) place($("alarms"), waiting, image);
  else if (waiting.has(image.id)) { waiting.get(image.id).remove(); waiting.delete(image.id); }
  if (detail && detail.id === image.id) { Object.assign(detail, image); showSaid(); }
}

function drop(box, map, room) {
  const older = [...box.children].slice(room);
  older.forEach((x) => { map.delete(Number(x.dataset.id)); x.remove(); });
}

function trim() {
  const box = $("images");
  if (box.children.length > ROOM && scrollY < innerHeight) {
    drop(box, images, ROOM);
    isEnd = false;
  }
  drop($("alarms"), waiting, STRIP);
  $("empty").hidden = box.children.length > 0;
  $("more").hidden = isEnd || box.children.length === 0;
}

async function loadOlder() {
  if (isLoading || isEnd) return;
  isLoading = true;
  try {
    const last = $("images").lastElementChild;
    const before = last ? `&before=${last.dataset.id}` : "";
    const which = chosen, found = (await ask(`api/images?${which}${before}`)).images;
    // Others were chosen meanwhile, or those that it was asked from have gone: they are loaded next.
    if (which !== chosen || last !== $("images").lastElementChild) return;
    found.forEach((x) => { newest = Math.max(newest, x.time); place($("images"), images, x); });
    isEnd = found.length < 60;
  } finally { isLoading = false; }
  trim();
  requestAnimationFrame(fillScreen); // a large one, or somebody has gone on to the end
}

const fillScreen = () => {
  if (revision >= 0 && !isLoading && !isEnd && $("end").getBoundingClientRect().top < innerHeight + AHEAD) attempt(loadOlder)();
};

// What the fields of the filter, and the buttons beside it, choose.
function readFilter() {
  const query = new URLSearchParams(only ? { only } : {});
  for (const field of $("filter").querySelectorAll("input")) {
    const text = field.value.trim();
    if (text) query.set(field.name, field.type === "datetime-local" ? Date.parse(text) / SECOND : text);
  }
  return `${query}`;
}

async function choose(which = only) {
  only = which;
  document.querySelectorAll("[data-only]").forEach((x) => x.setAttribute("aria-pressed", x.dataset.only === which));
  chosen = readFilter();
  $("table").href = `results.csv?${chosen}`;
  $("empty").textContent = chosen ? "No image is like that." : "No images yet. Those that arrive appear here.";
  images.clear();
  $("images").replaceChildren();
  isEnd = isLoading = false;
  await loadOlder();
}

let choosing;
function chooseSoon() {
  clearTimeout(choosing);
  choosing = setTimeout(attempt(() => choose()), 0.3 * SECOND);
}

// A file of regions, which takes a while: the images are inspected again.
async function download() {
  const button = $("export"), format = $("format").value;
  button.disabled = true;
  try {
    const answer = await fetch(`export.zip?format=${format}&${chosen}`);
    if (!answer.ok) throw new Error((await answer.json()).error);
    const link = make("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `${format}.zip`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60 * SECOND);
  } finally { button.disabled = false; }
}

// ---------------------------------------------------------------- following
async function show() {
  if (revision < 0) {
    revision = state.revision;
    (await ask("api/images?only=waiting")).images.forEach((x) => place($("alarms"), waiting, x));
    await loadOlder();
  }
  while (revision < state.revision) {
    asked = Date.now();
    const which = chosen, changed = (await ask(`api/changes?since=${revision}&${which}`)).images;
    if (which !== chosen) continue; // others were chosen meanwhile
    if (!changed.length) { revision = state.revision; break; }
    changed.forEach(take);
    revision = changed[changed.length - 1].revision;
  }
  trim();
  fillScreen();
  showState();
}

// A line alone is called after its model.
const nameLine = () => state.line || state.model.file.split("/").pop();

function showState() {
  const counts = state.counts, total = (counts.normal || 0) + (counts.abnormal || 0);
  $("sign-out").hidden = !state.has_token;
  $("model").textContent = nameLine();
  $("station").hidden = !state.line;
  $("counts").textContent = `${count(total, "image")}, ${count(counts.abnormal || 0, "alarm")}`
    + (counts.unreadable ? `, ${counts.unreadable} unreadable` : "")
    + (state.signals ? `, ${state.signals === 1 ? "1 signal waits" : `${state.signals} signals wait`}` : "");
  $("alarm-rate").textContent = percent(state.model.false_alarm_rate);
  showTrouble(tellStill(state));
  $("waiting").hidden = state.waiting === 0;
  $("n-waiting").textContent = count(state.waiting, "alarm");
  if (state.waiting > waiting.size && waiting.size < 60) refillAlarms();
  const kinds = $("kinds");
  if (kinds.children.length !== state.model.kinds.length) {
    kinds.replaceChildren(...state.model.kinds.map((x) => { const o = make("option"); o.value = x; return o; }));
  }
  showTrial();
  showSource();
  plot("hour");
  plot("day");
}

const refillAlarms = attempt(async () => {
  (await ask("api/images?only=waiting")).images.forEach((x) => place($("alarms"), waiting, x));
});

const tellShare = (p) => p < 1e-6 ? "not one in a million (p < 0.000001)" : `1 in ${Math.max(Math.round(1 / p), 1).toLocaleString("en")} (p = ${p.toPrecision(2)})`;

function showTrial() {
  const trial = state.trial, box = $("trial");
  $("corrections").hidden = !state.said && !trial;
  $("n-said").textContent = `${count(state.said, "correction")}, not yet learnt`;
  const isReady = trial && trial.state === "ready";
  $("try").disabled = Boolean(trial && trial.state === "running") || !state.said;
  $("apply").hidden = !(isReady && trial.changes.is_new);
  $("drop").hidden = !isReady;
  const key = JSON.stringify(trial);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren();
  if (!trial) return;
  const say = (text, name) => box.append(make("p", name, text));
  if (trial.state === "running") say("trying it on a copy of the model; inspection goes on…", "quiet");
  if (trial.state === "failed") say(trial.error, "badge abnormal");
  if (!isReady) return;
  const x = trial.changes;
  if (!x.is_new) { say("There is nothing new in it."); return; }
  say(`Of ${x.reviewed} reviewed the model was right about ${x.right_before}, and would be about ${x.right_after}.`);
  if (x.still_wrong.length) say(`Still not right: ${x.still_wrong.join(", ")}`);
  const last = x.others === 1 ? "the last other image" : `the last ${x.others} other images`;
  say(x.n_new_alarms + x.n_gone_alarms === 0 ? `Of ${last} nothing changes.`
    : `Of ${last} ${x.n_gone_alarms} would no longer raise an alarm${x.gone_alarms.length ? ` (${x.gone_alarms.join(", ")})` : ""}, `
      + `${x.n_new_alarms} would anew${x.new_alarms.length ? ` (${x.new_alarms.join(", ")})` : ""}.`);
  say(`Threshold ${x.threshold_before.toPrecision(4)} → ${x.threshold.toPrecision(4)}.`, "quiet");
  x.suspects.forEach(([name, before, after]) => say(
    `Look once more at ${name}: it is called good, and looks defective, or unlike all that was learnt. About ${tellShare(before)} good images looks as unusual; `
    + `once it has entered, it is ${tellShare(after)}.`, "badge unreadable"));
  if (x.doubt) say(`In doubt: ${x.doubt}`, "badge unreadable");
}

function showSource() {
  const source = state.source;
  $("source").hidden = !source;
  if (!source) return;
  const when = { frame: "every picture", still: "when nothing moves any more", trigger: "when triggered" }[source.when] || `every ${source.when} s`;
  $("source-name").textContent = source.name;
  $("source-text").textContent = [
    source.has_ended ? "has ended" : source.age === null ? "no picture yet" : `picture of ${tellAge(source.age)} ago`,
    `${source.taken} inspected, ${when}`,
    source.dropped ? `${count(source.dropped, "picture")} dropped, since they came faster than they could be inspected` : "",
  ].filter(Boolean).join(" · ");
  $("trigger").hidden = source.when !== "trigger";
  const picture = $("source-picture");
  if (source.age === null || (picture.dataset.frames === `${source.frames}` && !picture.hidden)) return;
  picture.dataset.frames = source.frames;
  picture.src = `source.jpg?${source.frames}`;
  picture.hidden = false;
}

const SVG = "http://www.w3.org/2000/svg";
function shape(tag, name, values, text) {
  const element = document.createElementNS(SVG, tag);
  if (name) element.setAttribute("class", name);
  for (const [key, value] of Object.entries(values)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function plot(span) {
  const own = state.spans[span], svg = $(`plot-${span}`), n = own.images.length;
  const key = JSON.stringify(own);
  if (svg.dataset.key === key) return;
  svg.dataset.key = key;
  const width = 420, height = 95, floor = 94, wide = width / n;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const most = Math.max(1, ...own.images), sum = (x) => x.reduce((a, b) => a + b, 0);
  const total = sum(own.images), alarms = sum(own.alarms);
  svg.setAttribute("aria-label", `${count(total, "image")}, ${count(alarms, "alarm")}`);
  svg.replaceChildren();
  own.images.forEach((n_images, i) => {
    const tall = (60 * n_images) / most, bad = (60 * own.alarms[i]) / most;
    const bar = { x: i * wide + 0.5, width: Math.max(wide - 1, 1) };
    const from = new Date((own.start + i * own.length) * SECOND).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    const group = shape("g", "", {});
    group.append(shape("title", "", {}, `${from}: ${count(n_images, "image")}, ${count(own.alarms[i], "alarm")}`));
    group.append(shape("rect", "images", { ...bar, y: floor - tall, height: tall }));
    group.append(shape("rect", "alarms", { ...bar, y: floor - bad, height: bad }));
    svg.append(group);
  });
  // The mean score in units of the threshold: 1 is the dashed line.
  const level = (x) => 30 - 22 * Math.min(x, 1.2);
  svg.append(shape("line", "limit", { x1: 0, x2: width, y1: level(1), y2: level(1) }));
  const points = own.means.map((x, i) => (x === null ? null : [(i + 0.5) * wide, level(x)])).filter(Boolean);
  if (points.length > 1) svg.append(shape("polyline", "mean", { points: points.map((x) => x.join(",")).join(" ") }));
  if (points.length === 1) svg.append(shape("line", "dot", { x1: points[0][0], x2: points[0][0], y1: points[0][1], y2: points[0][1] }));
  const time = (t) => new Date(t * SECOND).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  $(`from-${span}`).textContent = time(own.start);
  $(`sum-${span}`).textContent = `${count(total, "image")}, ${count(alarms, "alarm")}`
    + (total ? `, ${((100 * alarms) / total).toFixed(1)}%` : "");
  const drift = $(`drift-${span}`);
  const { drifted, verdict } = own.drift;
  drift.textContent = `${drifted ? "⚠ " : ""}${/drift/i.test(verdict) ? "" : "Drift: "}${verdict}`;
  drift.classList.toggle("drifted", own.drift.drifted);
}

// ---------------------------------------------------------------- one image
async function open(id) {
  detail = await ask(`api/images/${id}`);
  current = id;
  boxes = detail.said && detail.said.boxes ? detail.said.boxes.map((x) => [...x]) : [];
  $("detail-name").textContent = detail.name;
  $("detail-verdict").textContent = detail.verdict;
  $("detail-verdict").className = `badge ${detail.verdict}`;
  $("detail-numbers").textContent = detail.score === null ? "" : times(detail) + (detail.kind ? `, like ${detail.kind}` : "");
  $("detail-p").textContent = detail.p_value === null ? "" : tellP(detail.p_value, detail.p_floor);
  $("original").href = `images/${detail.id}/original`;
  $("kind").value = (detail.said && detail.said.kind) || detail.kind || "";
  $("pairs").replaceChildren(showPairs(detail.matches || []));
  showPicture();
  showSaid();
  if (!$("detail").open) $("detail").showModal();
}

function showPicture() {
  $("picture").src = pictureOf(detail, "overlay");
  $("picture").alt = detail.name;
  $("picture").hidden = $("original").hidden = detail.verdict === "unreadable";
  overlay = null;
  if (!detail.map) return;
  overlay = new Image();
  overlay.onload = drawBoxes;
  overlay.src = detail.map;
}

// The map in its colours, to be drawn over the picture.
function colourMap() {
  const map = new OffscreenCanvas(overlay.width, overlay.height), context = map.getContext("2d");
  context.drawImage(overlay, 0, 0);
  const pixels = context.getImageData(0, 0, map.width, map.height);
  for (let i = 0; i < pixels.data.length; i += 4) colour(pixels.data, i, readByte(pixels.data[i]), opacityOfMap());
  context.putImageData(pixels, 0, 0);
  return map;
}

function showSaid() {
  const said = detail.said;
  const isGood = said && said.verdict === "good";
  $("good").setAttribute("aria-pressed", Boolean(isGood && !said.similar));
  $("similar").setAttribute("aria-pressed", Boolean(isGood && said.similar));
  $("defective").setAttribute("aria-pressed", Boolean(said && said.verdict === "defective"));
  $("where").hidden = !(said && said.verdict === "defective");
  $("stage").classList.toggle("draws", !$("where").hidden);
  $("unsay").hidden = !said;
  $("found").hidden = !(detail.regions || []).length;
  $("clear").hidden = !boxes.length;
  $("seen").disabled = !waits(detail);
  const lines = [`inspected ${new Date(detail.time * SECOND).toLocaleString()}`];
  if (detail.reason || detail.note) lines.push(detail.reason || detail.note);
  if (detail.seen_at) lines.push(`looked at by ${detail.seen_by || "somebody"}`);
  $("detail-more").textContent = lines.join(" · ");
  $("said").textContent = !said ? "" : `${detail.said_by || "somebody"}: really ${said.verdict}`
    + (said.kind ? `, ${said.kind}` : "") + (said.similar ? ", and what looks like it" : "") + (detail.applied ? ", learnt" : ", not yet learnt");
  drawBoxes();
}

async function say(verdict, similar = false) {
  const said = verdict === null ? null : { verdict };
  if (similar) said.similar = true;
  if (verdict === "defective") {
    said.boxes = boxes.map((x) => x.map(Math.round));
    said.kind = $("kind").value.trim() || null;
  } else boxes = [];
  const own = detail; // which may be another one when the answer comes
  saids.push([own.id, own.said]);
  await ask("api/say", { image: own.id, said });
  Object.assign(own, { said, said_by: $("who").value.trim() || null, applied: null });
  if (own.seen_at === null) { own.seen_at = Date.now() / SECOND; own.seen_by = own.said_by; }
  if (detail === own) showSaid();
}

// The same once more takes it back.
const judge = (verdict, similar = false) =>
  detail.said && detail.said.verdict === verdict && Boolean(detail.said.similar) === similar ? say(null) : say(verdict, similar);

async function undo() {
  const last = saids.pop();
  if (!last) return;
  await ask("api/say", { image: last[0], said: last[1] });
  if (!$("detail").open || detail.id !== last[0]) await open(last[0]);
  else { detail.said = last[1]; boxes = last[1] && last[1].boxes ? last[1].boxes.map((x) => [...x]) : []; showSaid(); }
}

async function boxFound() {
  boxes = (detail.regions || []).map((x) => x.slice(0, 4));
  await say("defective");
}

async function step(by) {
  const ids = [...$("images").children].map((x) => Number(x.dataset.id));
  if (!ids.length) return;
  let i = ids.indexOf(current);
  if (i < 0) i = by > 0 ? -1 : 0;
  if (i + by >= ids.length && !isEnd) await loadOlder();
  const cards = [...$("images").children];
  const card = cards[Math.min(Math.max(i + by, 0), cards.length - 1)];
  current = Number(card.dataset.id);
  if ($("detail").open) await open(current);
  else card.focus();
}

async function stepAlarm(by) {
  // The newest first; after the last that waits the first again, or the page.
  const all = [...waiting.keys()].filter((x) => !detail || x !== detail.id).sort((a, b) => by * (b - a));
  const next = all.find((x) => detail && by * (detail.id - x) > 0) ?? all[0];
  if (next !== undefined) await open(next);
  else if (detail) $("detail").close();
}

async function see() {
  if (!waits(detail)) return;
  await ask("api/seen", { images: [detail.id] });
  await stepAlarm(1);
}

// Boxes are drawn in pixels of the image, wherever it is shown.
function layout() {
  const image = $("picture"), canvas = $("boxes"), [rows, cols] = detail.size || [1, 1];
  const scale = Math.min(image.clientWidth / cols, image.clientHeight / rows) || 1;
  const left = image.offsetLeft + (image.clientWidth - cols * scale) / 2;
  const top = image.offsetTop + (image.clientHeight - rows * scale) / 2;
  canvas.width = Math.max(1, Math.round(cols * scale));
  canvas.height = Math.max(1, Math.round(rows * scale));
  canvas.style.left = `${left}px`;
  canvas.style.top = `${top}px`;
  return scale;
}

function drawBoxes() {
  if (!detail || !$("picture").clientWidth) return;
  const scale = layout(), context = $("boxes").getContext("2d");
  if (mapView.isOn && overlay && overlay.complete) context.drawImage(colourMap(), 0, 0, $("boxes").width, $("boxes").height);
  context.lineWidth = 2;
  context.strokeStyle = "#00e5ff";
  [...boxes, ...(drawn ? [drawn] : [])].forEach(([top, left, bottom, right]) => {
    context.strokeRect(left * scale, top * scale, (right - left) * scale, (bottom - top) * scale);
  });
}

function listenForBoxes() {
  const canvas = $("boxes");
  let from = null;
  const where = (event) => {
    const place = canvas.getBoundingClientRect(), [rows, cols] = detail.size || [1, 1];
    const y = ((event.clientY - place.top) * rows) / place.height, x = ((event.clientX - place.left) * cols) / place.width;
    return [Math.min(Math.max(Math.round(y), 0), rows), Math.min(Math.max(Math.round(x), 0), cols)];
  };
  canvas.onpointerdown = (event) => {
    if ($("where").hidden || event.button) return; // of what is called defective alone
    from = where(event); canvas.setPointerCapture(event.pointerId);
    event.preventDefault();
  };
  canvas.onpointercancel = () => { from = drawn = null; drawBoxes(); };
  canvas.onpointermove = (event) => {
    if (!from) return;
    const to = where(event);
    drawn = [Math.min(from[0], to[0]), Math.min(from[1], to[1]), Math.max(from[0], to[0]), Math.max(from[1], to[1])];
    drawBoxes();
  };
  canvas.onpointerup = attempt(async () => {
    const box = drawn;
    from = drawn = null;
    const least = 6 / layout(); // of the screen's pixels: less is a click
    if (box && box[2] - box[0] > least && box[3] - box[1] > least) {
      boxes.push(box);
      await say("defective");
    } else drawBoxes();
  });
  $("picture").onload = drawBoxes;
  addEventListener("resize", drawBoxes);
}

// ---------------------------------------------------------------- models
const WHAT = {
  begin: "first model", review: "review applied", restore: "went back", elsewhere: "replaced by another program", known: "reviewed, and known already", threshold: "threshold set",
};
let former = null; // the model of which the one in use was made
async function showHistory() {
  const { entries, model, former: before } = await ask("api/history");
  former = before;
  const list = $("entries");
  list.replaceChildren();
  list.setAttribute("reversed", "");
  entries.forEach((entry) => {
    const item = make("li"), n = (entry.images || []).length;
    const who = entry.who ? ` by ${entry.who}` : "";
    item.append(make("strong", "", WHAT[entry.what] || entry.what), `${who}, ${new Date(entry.time).toLocaleString()}`);
    if (n) item.append(`, ${n} image${n > 1 ? "s" : ""}`);
    if (entry.what === "threshold") item.append(`, ${entry.threshold.toPrecision(4)}`);
    item.append(make("br"), make("code", "quiet", entry.to.slice(0, 12)));
    if (entry.to === model) item.append(make("span", "mark", " in use"));
    else if (entry.what !== "known") {
      const back = make("button", "", "Go back to it");
      back.onclick = attempt(() => restore(entry.to));
      item.append(" ", back);
    }
    list.append(item);
  });
  $("undo").disabled = !former;
  if (!$("history").open) $("history").showModal();
  if (former) $("undo").focus();
}

async function restore(digest) {
  await ask("api/restore", { model: digest });
  toast("went back to the former model");
  if ($("history").open) await showHistory();
}

const percent = (x) => `${+(100 * x).toPrecision(2)}%`;
function showThreshold() {
  const model = state.model, [least, most] = model.false_alarm_range;
  $("threshold-now").textContent = `An image is abnormal below a score of ${model.threshold.toPrecision(4)}${model.is_fixed ? ", which somebody has set" : ""}. `
    + `Then about ${percent(model.false_alarm_rate)} of good images raise an alarm${model.is_fixed ? ` (95%: ${percent(least)} to ${percent(most)})` : ""}.`;
  $("rate").value = +(100 * model.false_alarm_rate).toPrecision(2);
  $("factor").value = 1;
  $("factor").disabled = model.threshold === 0;
  $("free").hidden = !model.is_fixed;
  if (!$("threshold").open) $("threshold").showModal();
}

async function setThreshold(change) {
  Object.assign(state.model, await ask("api/threshold", change));
  showThreshold();
  toast("written; the line uses it from now on");
}

async function apply() {
  if (!state || !state.trial || state.trial.state !== "ready") return;
  await ask("api/apply", { trial: state.trial.number });
  toast("written; the line uses it from now on");
}

// ---------------------------------------------------------------- keys and clicks
const PRESSED = {
  ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: null, ArrowUp: null,
  n: () => stepAlarm(1), p: () => stepAlarm(-1), u: undo,
  m: () => setMap({ isOn: !mapView.isOn }), a: () => detail && see(),
  g: () => detail && judge("good"), s: () => detail && judge("good", true),
  d: () => detail && judge("defective"), b: () => detail && boxFound(),
  t: () => ask("api/try", {}), w: () => { $("detail").close(); $("apply").focus(); }, h: showHistory, l: () => state && showThreshold(), "?": () => $("help").showModal(),
  1: () => choose(""), 2: () => choose("abnormal"), 3: () => choose("said"), 4: () => choose("unreadable"), 5: () => choose("normal"),
  "/": () => { if (!document.querySelector("dialog[open]")) $("by-name").focus(); },
};

function listen() {
  $("who").value = localStorage.getItem("who") || "";
  $("who").onchange = () => localStorage.setItem("who", $("who").value.trim());
  $("more").onclick = attempt(loadOlder);
  ["scroll", "resize"].forEach((x) => addEventListener(x, fillScreen, { passive: true }));
  document.querySelectorAll("[data-only]").forEach((x) => { x.onclick = attempt(() => choose(x.dataset.only)); });
  document.querySelectorAll(".shut").forEach((x) => { x.onclick = () => x.closest("dialog").close(); });
  $("filter").oninput = chooseSoon;
  $("filter").onsubmit = (event) => event.preventDefault();
  $("filter").onreset = () => setTimeout(attempt(() => choose("")));
  $("export").onclick = attempt(download);
  $("see-all").onclick = attempt(async () => {
    await ask("api/seen", { images: [...waiting.keys()] }); // those that are shown
  });
  $("close").onclick = () => $("detail").close();
  $("detail").onclose = () => { detail = null; };
  $("map").append(showMapTools());
  mapView.change = drawBoxes;
  $("next-alarm").onclick = attempt(() => stepAlarm(1));
  $("seen").onclick = attempt(see);
  $("previous").onclick = attempt(() => step(-1));
  $("next").onclick = attempt(() => step(1));
  $("good").onclick = attempt(() => judge("good"));
  $("similar").onclick = attempt(() => judge("good", true));
  $("defective").onclick = attempt(() => judge("defective"));
  $("unsay").onclick = attempt(() => say(null));
  $("found").onclick = attempt(boxFound);
  $("clear").onclick = attempt(() => { boxes = []; return say("defective"); });
  $("kind").onchange = attempt(() => say("defective"));
  $("try").onclick = attempt(() => ask("api/try", {}));
  $("drop").onclick = attempt(() => ask("api/drop", {}));
  $("apply").onclick = attempt(apply);
  $("trigger").onclick = attempt(() => ask("/trigger", {}));
  $("undo").onclick = attempt(() => restore(former));
  $("show-history").onclick = attempt(showHistory);
  $("show-threshold").onclick = () => state && showThreshold();
  $("by-factor").onsubmit = attempt((event) => {
    event.preventDefault();
    return setThreshold({ threshold: $("factor").value * state.model.threshold });
  });
  $("by-rate").onsubmit = attempt((event) => { event.preventDefault(); return setThreshold({ false_alarm_rate: $("rate").value / 100 }); });
  $("free").onclick = attempt(() => setThreshold({ threshold: null }));
  $("show-help").onclick = () => $("help").showModal();
  listenForBoxes();
  document.onkeydown = (event) => {
    const isTyping = event.target.matches("input:not([type=range]), select");
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
    if (event.repeat && !event.key.startsWith("Arrow")) return;
    const work = PRESSED[event.key];
    if (!work) return;
    event.preventDefault();
    attempt(work)();
  };
}

const PAGE = {
  path: "api/state", show, name: () => nameLine(), waiting: () => state.waiting,
  tick: () => { $("age").textContent = newest ? `, newest image ${tellSince(newest)} ago` : ""; },
};
listen();
follow();
setInterval(tick, SECOND);
