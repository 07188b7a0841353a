"""Reviews from the page: tried first, then written, and taken back."""

import math
import os
import threading
from contextlib import contextmanager

from skpatchsvdd._cli import (
    ListedError,
    describe_cause,
    load_model,
    printable,
    tell,
    try_review,
)
from skpatchsvdd._report import check_reviewed, digest_file, make_review
from skpatchsvdd._serve.answers import RefusedError
from skpatchsvdd._serve.history import name_image
from skpatchsvdd._serve.line import describe_threshold
from skpatchsvdd._utils import hold_lock

# Other images of which it is shown what changes: the last ones.
_N_OTHERS = 60
# Names in a list.
_N_NAMED = 8
# Seconds that a request waits until another one has changed the model.
_PATIENCE = 20


class ReviewQueue:
    """Applies what people say of images to the model of a line.

    A trial learns in a thread, by the code of ``skpatchsvdd update --review``, from a
    copy of the model: inspection goes on with the one in use until `apply` is called.
    """

    def __init__(self, line, history):
        self._line, self._store, self.history = line, line.store, history
        self._changing = threading.Lock()
        self._trial, self._n_trials = None, 0
        self._note_model()

    def _note_model(self):
        """Note the model that is there, and which images it has learnt from."""
        digest = self.history.begin()
        named = {x for e in self.history.list_entries() for x in e.get("images", ())}
        entries = dict.fromkeys(named)
        for number, (said, entry) in self.history.find_learnt(digest).items():
            image = self._store.find(number)
            if image is not None and image["said"] == said:
                entries[number] = entry
        self._store.mark_applied(entries)
        return digest

    @contextmanager
    def _held(self):
        """Hold the lock for a request, which does not wait for ever."""
        if not self._changing.acquire(timeout=_PATIENCE):
            reason = "something else changes the model. Try again in a moment."
            raise RefusedError(reason)
        try:
            yield
        finally:
            self._changing.release()

    def note_change(self):
        """Note that the model's file was replaced by another program."""
        with self._changing:  # not before a change by this program is noted
            self._note_model()

    def say(self, number, said, who):
        """Keep what somebody says of an image, with a copy of its file."""
        with self._held():  # not while the model learns something else of it
            image = self._store.find(number)
            if image is None:
                raise RefusedError(f"there is no image {number}.")
            if image["applied"] is not None:
                reason = "the model has learnt it. Go back by its history, first."
                raise RefusedError(reason)
            if said is not None:
                names = ("verdict", "kind", "boxes", "similar")
                said = {x: said[x] for x in names if x in said}
                self._check_said(image, said)
                self._keep_image(image)
            self._store.say(number, said, who)

    def _check_said(self, image, said):
        if image["digest"] is None:
            raise RefusedError("it could not be read when it arrived.")
        try:
            boxes = check_reviewed({"file": "image", **said}, "the image").boxes
        except ValueError as error:
            raise RefusedError(str(error)) from error
        details = self._store.read_details(image)
        height, width = details.get("size", (math.inf, math.inf))
        if any(x[2] > height or x[3] > width for x in boxes):
            raise RefusedError(f"boxes must be within its {height} x {width} pixels.")

    def _keep_image(self, image):
        """Copy the file of an image, which is still as it was inspected."""
        if (self.history.images / name_image(image)).exists():
            return
        try:
            digest = digest_file(image["file"])
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError)
            raise RefusedError(
                f"its file {'is gone' if is_gone else 'cannot be read any more'}, "
                "so that nothing can be learnt from it. Leave files in the folder "
                "until they are reviewed."
            ) from error
        if digest != image["digest"]:
            raise RefusedError("its file has changed since it was inspected.")
        self.history.keep_image(image)

    def _check_idle(self):
        if self._trial is not None and self._trial["state"] == "running":
            raise RefusedError("a trial is under way.")

    def start_trial(self, who):
        """Begin to try all that was said; see `describe_trial`."""
        with self._held():
            self._check_idle()
            said = self._store.list_said()
            if not said:
                raise RefusedError("nothing was said that is not applied yet.")
            self._n_trials += 1
            trial = self._trial = {"number": self._n_trials, "state": "running"}
        args = trial, said, who
        threading.Thread(target=self._run, args=args, daemon=True).start()
        return trial["number"]

    def _run(self, trial, said, who):
        try:
            trial |= self._try(said, who)
        except Exception as error:
            trial |= {"state": "failed", "error": self._explain(error, said)}

    def _explain(self, error, said):
        """Return what has kept a trial from learning, in the words of the page."""
        if isinstance(error, ListedError):  # what is wrong with each image
            text = " ".join(error.lines[1:])
            for image in said:
                kept, name = name_image(image), os.path.basename(image["file"])
                text = text.replace(os.path.abspath(self.history.images / kept), name)
            return printable(text)
        tell(f"trial failed: {type(error).__name__}: {error}")
        if isinstance(error, (OSError, MemoryError)):
            return f"The server could not try it: {printable(describe_cause(error))}."
        return (
            "The model cannot learn this. Take back what was said last, and try again; "
            "what the server prints says more."
        )

    def _try(self, said, who):
        digest, device = self._line.model.digest, self._line.model.est.device
        est = load_model(self.history.find_model(digest), None, self._line.encoder)
        images = [
            {"file": name_image(x), "digest": x["digest"], **x["said"]} for x in said
        ]
        review = make_review(est, os.path.abspath(self.history.images), images)
        path = self.history.write_json("trial.review.json", review)
        model_device = est.device
        est.set_params(device=device)  # that of this run
        others = self._list_others({x["id"] for x in said})
        changes = try_review(path, est, self._line.path, others=others, verbose=0)
        est.set_params(device=model_device)
        if changes.est is None:
            self._note_known(said, digest, who)
        names = {name_image(x): os.path.basename(x["file"]) for x in said}
        return {
            "state": "ready",
            "images": [x["id"] for x in said],
            "said": said,
            "from": digest,
            "review": review,
            "est": changes.est,
            "changes": _describe(changes, names),
        }

    def _list_others(self, reviewed):
        """Return the files of the last images that are there and not reviewed."""
        recent = self._store.list_images(limit=_N_OTHERS + len(reviewed))
        others = [x for x in recent if x["id"] not in reviewed]
        files = [x["file"] for x in others if x["verdict"] != "unreadable"]
        return [*filter(os.path.exists, files)][:_N_OTHERS]

    def _note_known(self, said, digest, who):
        """Note that the model knows all that was said, unless that has changed."""
        with self._changing:
            former = {x["id"]: x["said"] for x in said}
            now = self._store.list_said()
            same = [x for x in now if former.get(x["id"]) == x["said"]]
            if same and digest == self._line.model.digest:
                entry = {"what": "known", "who": who, "from": digest, "to": digest}
                self.history.append(entry | _name_said(same))
                self._note_model()

    def describe_trial(self):
        """Return the last trial: its number and state and, if ready, what changes."""
        trial = self._trial
        if trial is None:
            return None
        names = ("number", "state", "error", "changes", "images")
        return {x: trial[x] for x in names if x in trial}

    def drop_trial(self):
        """Forget the last trial, unless it is under way."""
        with self._held():
            self._check_idle()
            self._trial = None

    def apply(self, number, who):
        """Write what a trial has learnt; the line uses it from now on."""
        with self._held():
            trial = self._trial
            if trial is None or trial["number"] != number or trial["state"] != "ready":
                raise RefusedError("there is no such trial that is ready.")
            if trial["est"] is None:
                raise RefusedError("it teaches nothing new.")
            if _name_said(self._store.list_said()) != _name_said(trial["said"]):
                raise RefusedError("something else was said since. Try it again.")
            with hold_lock(self._line.path):
                if self._note_model() != trial["from"]:
                    raise RefusedError("the model is another one by now. Try it again.")
                n_entries = len(self.history.list_entries())
                name = f"{n_entries + 1:04d}.review.json"
                self.history.write_json(name, trial["review"], indent=1)
                digest = self.history.keep_model(trial["est"].save)
                more = {"review": name} | _name_said(trial["said"])
                entry = self.history.use("review", who, trial["from"], digest, **more)
            self._take_up()
            return entry

    def _take_up(self):
        """Use the model that was written."""
        self._line.load()
        self._note_model()
        self._trial = None

    def set_threshold(self, name, value, who):
        """Set the "threshold" of the model to a score, or its "false_alarm_rate"."""
        if self._line.has_own_threshold:
            raise RefusedError(
                f"the line {self._line.name} has a threshold or false_alarm_rate of "
                "its own in the station's file, which counts instead of the model's: "
                "change it there, or take it out."
            )
        with self._held():
            with hold_lock(self._line.path):
                former = self._note_model()
                path = self.history.find_model(former)
                est = load_model(path, None, self._line.encoder)
                before = describe_threshold(est), est.false_alarm_rate
                try:
                    if name == "false_alarm_rate":
                        est.set_params(false_alarm_rate=value)
                    est.fix_threshold(value if name == "threshold" else None)
                except ValueError as error:
                    raise RefusedError(str(error)) from error
                now = describe_threshold(est)
                if before == (now, est.false_alarm_rate):
                    raise RefusedError("the model's threshold is that already.")
                digest = self.history.keep_model(est.save)
                entry = self.history.use("threshold", who, former, digest, **now)
            self._take_up()
            return entry

    def restore(self, digest, who):
        """Go back to a former model."""
        with self._held():
            models = {x["to"] for x in self.history.list_entries()}
            if digest not in models or not self.history.find_model(digest).exists():
                raise RefusedError("there is no such model in the history.")
            with hold_lock(self._line.path):
                former = self._note_model()  # what is there is kept, whoever wrote it
                if digest == former:
                    raise RefusedError("that is the model in use.")
                entry = self.history.use("restore", who, former, digest)
            self._take_up()
            return entry


def _name_said(images):
    """Return images, and what was said of each, as an entry of the history has them."""
    return {"images": [x["id"] for x in images], "said": [x["said"] for x in images]}


def _describe(changes, names):
    """Return what a trial changes, as numbers and short lists."""

    def shorten(files):
        files = [names.get(os.path.basename(x), os.path.basename(x)) for x in files]
        return [printable(x) for x in files[:_N_NAMED]]

    return {
        "reviewed": len(changes.known),
        "right_before": changes.n_right_before,
        "right_after": changes.n_right,
        "still_wrong": shorten(changes.wrong),
        "others": len(changes.others),
        "new_alarms": shorten(changes.new_alarms),
        "n_new_alarms": len(changes.new_alarms),
        "gone_alarms": shorten(changes.gone_alarms),
        "n_gone_alarms": len(changes.gone_alarms),
        "threshold_before": float(changes.offset_before),
        "threshold": float(changes.offset),
        "suspects": [(*shorten([x[0]]), *x[1:]) for x in changes.suspects[:_N_NAMED]],
        "is_new": changes.est is not None,
        "doubt": changes.doubt,
    }
