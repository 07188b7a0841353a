// The review: what people say of the images, kept by the browser and saved as a file.
// It is part of the page, whose script comes after it: see page.html.
const review = { said: new Map(), undo: [], isKept: true, isSaved: true, hasSaved: false };
const CHOICES = {
  good: ["really good", "this image shows nothing wrong (g)"],
  similar: ["good, and so is what looks like it", "what looks like it raises no alarm, either (s)"],
  defective: ["really defective", "this image shows a defect (d)"],
};
const LEAST_DRAG = 4; // pixels of the screen: less is a click

const keyOf = (x) => `${x.path ?? x.name}\n${x.digest ?? ""}`;
const saidOf = (x) => review.said.get(keyOf(x));
const verdictOf = (x) => saidOf(x)?.verdict;
const storageKey = () => `skpatchsvdd-review-${data.key}`;
// A file that was inspected again after it had changed: only its last image is there.
const isPast = (x) => x.path !== null && review.last.get(x.path) !== x && review.last.get(x.path).digest !== x.digest;

function startReview() {
  review.last = new Map(images.map((x) => [x.path, x]));
  readKept();
  buildBar();
  document.addEventListener("keydown", pressKey);
  window.addEventListener("storage", (e) => { // another window with the same page
    if (e.key !== storageKey()) return;
    readKept(); review.undo = []; showSaid();
  });
  window.addEventListener("beforeunload", (e) => { if (!review.isKept && !review.isSaved) e.preventDefault(); });
}

function readKept() {
  let kept = null;
  try {
    kept = localStorage.getItem(storageKey());
    localStorage.setItem(`${storageKey()}-try`, "");
    localStorage.removeItem(`${storageKey()}-try`);
  } catch { review.isKept = false; }
  try { review.said = new Map(JSON.parse(kept ?? "[]")); } catch { review.said = new Map(); } // damaged
}

function keep() {
  review.isSaved = false;
  try {
    localStorage.setItem(storageKey(), JSON.stringify([...review.said]));
    review.isKept = true;
  } catch { review.isKept = false; } // not allowed, or full
}

// Sets what is said of an image, undefined for nothing; all that shows it follows.
function say(x, said) {
  if (isPast(x)) return;
  review.undo.push([x, saidOf(x)]);
  store(x, said);
}

function store(x, said) {
  if (said) review.said.set(keyOf(x), said); else review.said.delete(keyOf(x));
  keep();
  showSaid();
}

function undo() {
  const last = review.undo.pop();
  if (!last) return;
  if ($("dialog").open && opened !== last[0]) show(last[0]);
  store(...last);
}

// What a button or a key says: `similar` that what looks like a good image is good, too.
const SAYS = {
  good: { verdict: "good" }, similar: { verdict: "good", similar: true },
  defective: { verdict: "defective", kind: null, boxes: [] },
};
const choiceOf = (x) => saidOf(x)?.similar ? "similar" : verdictOf(x);

// The same once more takes it back.
function judge(x, choice) { say(x, choiceOf(x) === choice ? undefined : { ...SAYS[choice] }); }

function boxFound(x) {
  if (x.regions.length) say(x, { ...SAYS.defective, kind: saidOf(x)?.kind ?? null, boxes: x.regions.map((r) => r.slice(0, 4)) });
}

function addBox(x, box) {
  const said = verdictOf(x) === "defective" ? saidOf(x) : SAYS.defective;
  say(x, { ...said, boxes: [...said.boxes, box] });
}

function removeBox(x, i) { say(x, { ...saidOf(x), boxes: saidOf(x).boxes.filter((_, k) => k !== i) }); }

// A name is kept if `update` takes it: not one that means something else elsewhere.
const isKind = (text) => /\p{L}/u.test(text) && !/^(good|normal|ok|unknown|nan|inf|infinity|[-+.\de]+)$/i.test(text);

function nameKind(x, text) {
  const kind = text.trim().replace(/\s+/g, " ") || null;
  if (verdictOf(x) !== "defective" || saidOf(x).kind === kind) return;
  if (kind === null || isKind(kind)) say(x, { ...saidOf(x), kind });
  else if ($("dialog").open) {
    fillReview(x);
    $("dialog").querySelector(".hint").textContent = `No kind of defect can be called "${kind}".`;
  }
}

function showSaid() {
  tellReview();
  for (const [card, x] of cards) labelReview(card, x);
  if ($("dialog").open) { fillReview(opened); drawBoxes(opened); }
}

function choiceButton(x, choice) {
  const [text, title] = CHOICES[choice], button = make("button", text, choice);
  button.title = title;
  button.onclick = (e) => { e.stopPropagation(); judge(x, choice); };
  button.disabled = isPast(x);
  return button;
}

function showVerdictButtons(x) {
  const row = make("div", undefined, "judge");
  row.onclick = (e) => e.stopPropagation();
  row.append(choiceButton(x, "good"), choiceButton(x, "defective"), make("span", "", "said"));
  return row;
}

function press(row, x) {
  // A card has no button for similar ones: that of good ones stands for both.
  const choice = row.querySelector(".similar") ? choiceOf(x) : verdictOf(x);
  for (const name of Object.keys(CHOICES)) row.querySelector(`.${name}`)?.setAttribute("aria-pressed", choice === name);
}

function labelReview(card, x) {
  const said = saidOf(x), row = card.querySelector(".judge"), text = row.querySelector(".said");
  press(row, x);
  card.classList.toggle("reviewed", Boolean(said));
  const parts = said?.verdict === "defective" ? [said.kind, said.boxes.length && count(said.boxes.length, "box", "boxes")]
    : [said?.similar && "and so is what looks like it"];
  text.textContent = parts.filter(Boolean).join(" · ");
  text.hidden = !text.textContent;
}

// In the dialog: the verdict, the kind and a hint, below the name of the image.
function showReview(x) {
  const row = make("div", undefined, "judge"), label = make("label", "Kind "), kind = make("input"), list = make("datalist");
  kind.placeholder = "scratch, dent …"; kind.maxLength = 80; kind.ariaLabel = "kind of defect";
  list.id = "kinds"; kind.setAttribute("list", "kinds");
  kind.onchange = kind.onblur = () => nameKind(x, kind.value);
  kind.onkeydown = (e) => { if (e.key === "Enter") $("dialog").focus(); };
  label.append(kind);
  const next = make("button", "next alarm", "next");
  next.title = "to the next alarm (n)"; next.onclick = () => stepAlarm(1, x);
  row.append(...Object.keys(CHOICES).map((choice) => choiceButton(x, choice)), label, list, next, showKeys(), make("span", "", "hint"));
  fillReview(x, row);
  return row;
}

function fillReview(x, row = $("dialog").querySelector(".judge")) {
  const said = saidOf(x), kind = row.querySelector("input"), n = said?.boxes?.length;
  press(row, x);
  kind.disabled = said?.verdict !== "defective";
  kind.value = said?.kind ?? "";
  const kinds = new Set([...data.known_kinds, ...[...review.said.values()].map((s) => s.kind).filter(Boolean)]);
  row.querySelector("datalist").replaceChildren(...[...kinds].sort().map((text) => { const o = make("option"); o.value = text; return o; }));
  const mark = 'Say "really defective", and drag a box over it on the picture.';
  let hint = isAlarm(x) ? `Is nothing wrong? Say "really good". Is there a defect? ${mark}` : `Was a defect missed? ${mark}`;
  if (isPast(x)) hint = "The file was inspected again after it had changed: review its later image.";
  else if (said?.verdict === "good") hint = `Kept as really good${said.similar ? ", and so is what looks like it" : ""}. ${tellRest()}`;
  else if (n) hint = `Kept as really defective, in ${count(n, "box", "boxes")}. Drag more, or remove one by its cross. ${tellRest()}`;
  else if (said) hint = "Kept as really defective. Drag boxes over where, or leave that to the map.";
  row.querySelector(".hint").textContent = hint;
}

// The picture, with boxes above it that are drawn by dragging.
function showStage(x, canvas) {
  const stage = make("div", undefined, "stage");
  stage.append(canvas);
  stage.onpointerdown = (e) => { if (e.button === 0 && e.target.tagName !== "BUTTON" && !isPast(x)) startBox(x, stage, e); };
  drawBoxes(x, stage);
  return stage;
}

function drawBoxes(x, stage = $("dialog").querySelector(".stage")) {
  stage.classList.toggle("marking", verdictOf(x) === "defective");
  stage.querySelectorAll(".box").forEach((e) => e.remove());
  (saidOf(x)?.boxes ?? []).forEach((box, i) => {
    const e = placeBox(make("div", undefined, "box"), x, box), cross = make("button", "×");
    cross.title = cross.ariaLabel = "remove this box";
    cross.onclick = () => { removeBox(x, i); $("dialog").focus(); };
    e.append(cross);
    stage.append(e);
  });
}

function placeBox(e, x, [top, left, bottom, right]) {
  const [height, width] = x.size, share = (part, whole) => `${100 * part / whole}%`;
  Object.assign(e.style, { top: share(top, height), left: share(left, width),
    height: share(bottom - top, height), width: share(right - left, width) });
  return e;
}

function startBox(x, stage, start) {
  const frame = stage.getBoundingClientRect(), draft = make("div", undefined, "box draft");
  let box = null;
  const move = (e) => {
    const isDrag = Math.hypot(e.clientX - start.clientX, e.clientY - start.clientY) >= LEAST_DRAG;
    box = isDrag ? boxBetween(x, frame, start, e) : box;
    if (box) stage.append(placeBox(draft, x, box));
  };
  const end = (e) => {
    stage.onpointermove = stage.onpointerup = stage.onpointercancel = null;
    draft.remove();
    if (e.type === "pointerup" && box) addBox(x, box);
  };
  start.preventDefault(); // no selection, and no ghost of the picture
  $("dialog").focus();
  if (start.isTrusted) stage.setPointerCapture(start.pointerId);
  stage.onpointermove = move; stage.onpointerup = end; stage.onpointercancel = end;
}

// The pixels of the image between two places on the screen, each at least in part.
function boxBetween(x, frame, a, b) {
  const span = (from, to, start, length, n) => {
    const [low, high] = [from, to].map((v) => Math.min(Math.max((v - start) / length, 0), 1) * n).sort((p, q) => p - q);
    const first = Math.min(Math.floor(low), n - 1);
    return [first, Math.max(Math.ceil(high), first + 1)];
  };
  const [top, bottom] = span(a.clientY, b.clientY, frame.top, frame.height, x.size[0]);
  const [left, right] = span(a.clientX, b.clientX, frame.left, frame.width, x.size[1]);
  return [top, left, bottom, right];
}

function showKeys() {
  const keys = make("span", undefined, "keys");
  for (const [key, text] of KEYS) {
    const one = make("span"); one.append(make("kbd", key), ` ${text}`); keys.append(one);
  }
  return keys;
}

function pressKey(e) {
  const typed = e.target.matches?.("input:not([type=range]), select, textarea");
  if (typed || e.ctrlKey || e.metaKey || e.altKey) return;
  const x = $("dialog").open ? opened : document.activeElement?.closest(".card")?.image;
  switch (e.key) {
    case "n": stepAlarm(1, x); break;
    case "p": stepAlarm(-1, x); break;
    case "g": if (x) judge(x, "good"); break;
    case "s": if (x) judge(x, "similar"); break;
    case "d": if (x) judge(x, "defective"); break;
    case "b": if (x) boxFound(x); break;
    case "m": setMap({ isOn: !mapView.isOn }); break;
    case "u": undo(); break;
    default: return;
  }
  e.preventDefault();
}

const listAlarms = () => images.filter((x) => isAlarm(x) && !isPast(x));
const listOpen = () => listAlarms().filter((x) => !verdictOf(x));

// What is left to do.
function tellRest() {
  const open = listOpen().length;
  return open ? `${count(open, "alarm is", "alarms are")} left to review.` : "No alarm is left to review: close this and save the review.";
}

// From an image to the next alarm; from nowhere to the first that is not reviewed.
function stepAlarm(by, x) {
  const alarms = order.filter((other) => isAlarm(other) || other === x);
  const next = x ? alarms[alarms.indexOf(x) + by] : alarms.find((other) => !verdictOf(other)) ?? alarms[0];
  if (next) show(next);
  else if (x && $("dialog").open) $("dialog").querySelector(".hint").textContent = `This is the ${by > 0 ? "last" : "first"} alarm. ${tellRest()}`;
  else if (!x) tellHow("There is no alarm among the images that are shown.");
}

function buildBar() {
  const bar = $("review"), row = make("div", undefined, "row"), tally = make("span", undefined, "tally");
  const back = make("button", "Undo"), save = make("button", "Save review");
  back.id = "undo"; back.onclick = undo; save.id = "save"; save.onclick = saveReview;
  row.append(tally, back, save, showKeys());
  const how = make("div", undefined, "row faint"), after = make("div", undefined, "row"), code = make("code"), button = make("button", "copy");
  how.id = "how"; after.id = "after"; code.id = "apply"; button.dataset.copy = "apply";
  after.append(make("span", "Saved in the browser's folder of downloads. With the paths of both files, apply it to the model, and inspect again:", "faint"), code, button);
  const warning = make("div", undefined, "row warning");
  warning.id = "warning";
  bar.append(row, how, after, warning);
}

function tellHow(text) {
  $("how").textContent = text;
  $("how").hidden = !text;
}

function tellReview() {
  const said = [...new Set(images.map(saidOf).filter(Boolean))], n = (v) => said.filter((s) => s.verdict === v).length;
  const part = (verdict) => {
    const e = make("span", undefined, verdict);
    e.append(make("b", n(verdict)), make("span", " really", "wide"), ` ${verdict}`);
    return e;
  };
  const open = listOpen().length;
  const rest = make("span", `${open} of ${count(listAlarms().length, "alarm")} to review`, "faint");
  $("review").querySelector(".tally").replaceChildren(part("good"), " · ", part("defective"), " · ", rest);
  $("undo").disabled = !review.undo.length;
  $("save").disabled = !said.length;
  $("after").hidden = !(review.hasSaved && review.isSaved);
  if (!said.length) tellHow("Is an alarm wrong, or was a defect missed? Say so below the image, and save the review: the model learns from it.");
  else tellHow(open || review.isSaved ? "" : "No alarm is left to review. Look for missed defects, too, and save the review.");
  const warnings = [];
  if (!review.isKept) warnings.push("This browser does not keep the review: save it before you close or reload this page.");
  if (said.length && images.some((x) => x.path === null)) warnings.push("These images did not come as files, so that the command update cannot find them.");
  $("warning").textContent = warnings.join(" ");
  $("warning").hidden = !warnings.length;
}

function makeReview() {
  const listed = new Map();
  for (const x of images) if (saidOf(x) && !isPast(x)) {
    listed.set(keyOf(x), { file: x.path ?? x.name, ...saidOf(x), digest: x.digest });
  }
  return { format: "skpatchsvdd-review", version: 1, model: data.fingerprint, folder: data.folder, images: [...listed.values()] };
}

// One line for each image, so that a person can read it.
function writeReview() {
  const { images: listed, ...rest } = makeReview(), head = JSON.stringify(rest).slice(0, -1);
  return `${head},"images":[\n${listed.map((x) => JSON.stringify(x)).join(",\n")}\n]}\n`;
}

// Of its time: of two files of one name a browser would call the later one otherwise,
// and the command would apply the former.
function nameFile(now) {
  const two = (n) => String(n).padStart(2, "0");
  const day = [now.getFullYear(), now.getMonth() + 1, now.getDate()], time = [now.getHours(), now.getMinutes(), now.getSeconds()];
  return `review-${day.map(two).join("")}-${time.map(two).join("")}.json`;
}

function saveReview() {
  const blob = new Blob([writeReview()], { type: "application/json" });
  const link = make("a"), name = nameFile(new Date());
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  review.isSaved = review.hasSaved = true;
  $("apply").textContent = `skpatchsvdd update ${quoted(data.model || "part.model")} --review ${name}`;
  tellReview();
}
