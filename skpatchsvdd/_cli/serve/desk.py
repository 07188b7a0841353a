"""Reviews from the page: tried first, then written, and taken back."""

import json
import math
import os
import threading
from contextlib import contextmanager

from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.review import try_review
from skpatchsvdd._cli.serve.history import name_image
from skpatchsvdd._cli.terminal import ListedError, describe_cause, printable, tell
from skpatchsvdd._report import DEFECTIVE, check_reviewed, digest_file, make_review
from skpatchsvdd._utils import hold_lock, replaced_when_whole

# Other images of which it is shown what changes: the last ones.
_N_OTHERS = 60
# Names in a list.
_N_NAMED = 8
# Seconds that a request waits until another one has changed the model.
_PATIENCE = 20


class Refused(ValueError):
    """What somebody asked for cannot be done; the message says why."""


class Desk:
    """Applies what people say of images to the model of a line.

    A trial learns in a thread, by the code of ``skpatchsvdd update --review``, from a
    copy of the model: inspection goes on with the one in use until `apply` is called.
    """

    def __init__(self, line, history):
        self._line, self._store, self.history = line, line.store, history
        self._changing = threading.Lock()
        self._trial, self._n_trials = None, 0
        self._begin()

    def _begin(self):
        """Note the model that is there, and which images it has learnt from."""
        digest = self.history.begin()
        named = {x for e in self.history.list_entries() for x in e.get("images", ())}
        learnt, entries = self.history.find_learnt(digest), dict.fromkeys(named)
        for number, (said, entry) in learnt.items():
            image = self._store.find(number)
            if image is not None and image["said"] == said:
                entries[number] = entry
        self._store.mark_applied(entries)
        return digest

    @contextmanager
    def _held(self):
        """Hold the lock for a request, which does not wait for ever."""
        if not self._changing.acquire(timeout=_PATIENCE):
            raise Refused("something else changes the model. Try again in a moment.")
        try:
            yield
        finally:
            self._changing.release()

    def note_change(self):
        """Note that the model's file was replaced by another program."""
        with self._changing:  # not before it is noted who has
            self._begin()

    def say(self, number, said, who):
        """Keep what somebody says of an image, with a copy of its file."""
        with self._held():  # not while the model learns something else of it
            self._say(number, said, who)

    def _say(self, number, said, who):
        image = self._store.find(number)
        if image is None:
            raise Refused(f"there is no image {number}.")
        if image["applied"] is not None:
            raise Refused("the model has learnt it. Go back by its history, first.")
        if said is None:
            self._store.say(number, None, who)
            return
        if image["digest"] is None:
            raise Refused("it could not be read when it arrived.")
        names = ("verdict", "kind", "boxes", "similar")
        said = {x: said[x] for x in names if x in said}
        try:
            check_reviewed({"file": "image", **said}, "the image")
            self._check_boxes(image, said.get("boxes") or [])
        except ValueError as error:
            raise Refused(str(error)) from error
        if not (self.history.images / name_image(image)).exists():
            try:
                digest = digest_file(image["file"])
            except OSError as error:
                is_gone = isinstance(error, FileNotFoundError)
                raise Refused(
                    f"its file {'is gone' if is_gone else 'cannot be read any more'}, "
                    "so that nothing can be learnt from it. Leave files in the folder "
                    "until they are reviewed."
                ) from error
            if digest != image["digest"]:
                raise Refused("its file has changed since it was inspected.")
            self.history.keep_image(image)
        self._store.say(number, said, who)

    def _check_boxes(self, image, boxes):
        details = self._store.read_details(image)
        height, width = details.get("size", (math.inf, math.inf))
        if any(x[2] > height or x[3] > width for x in boxes):
            raise ValueError(f"boxes must be within its {height} x {width} pixels.")

    def start_trial(self, who):
        """Begin to try all that was said; see `describe_trial`."""
        with self._held():
            if self._trial is not None and self._trial["state"] == "running":
                raise Refused("a trial is under way.")
            said = self._store.list_said()
            if not said:
                raise Refused("nothing was said that is not applied yet.")
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
        path = self.history.folder / "trial.review.json"
        est = load_model(self.history.find_model(digest), None, self._line.encoder)
        images = [
            {"file": name_image(x), "digest": x["digest"], **_complete(x["said"])}
            for x in said
        ]
        review = make_review(est, os.path.abspath(self.history.images), images)
        with replaced_when_whole(path) as partial:
            partial.write_text(json.dumps(review), "utf-8")
        reviewed = {x["id"] for x in said}
        recent = self._store.list_images(limit=_N_OTHERS + len(reviewed))
        others = [
            x["file"]
            for x in recent
            if x["id"] not in reviewed
            and x["verdict"] != "unreadable"
            and os.path.exists(x["file"])
        ]
        own = est.device
        est.set_params(device=device)  # that of this run
        changes = try_review(
            path, est, self._line.path, others=others[:_N_OTHERS], verbose=0
        )
        est.set_params(device=own)
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

    def _note_known(self, said, digest, who):
        """Note that the model knows all that was said, unless that has changed."""
        with self._changing:
            keys = [_key(x) for x in said]
            same = [x for x in self._store.list_said() if _key(x) in keys]
            if same and digest == self._line.model.digest:
                self.history.note_known(who, digest, **_name_said(same))
                self._begin()

    def describe_trial(self):
        """Return the last trial: its number and state and, if ready, what changes."""
        trial = self._trial
        if trial is None:
            return None
        shown = ("number", "state", "error", "changes", "images")
        return {x: trial[x] for x in shown if x in trial}

    def drop_trial(self):
        """Forget the last trial, unless it is under way."""
        with self._held():
            if self._trial is not None and self._trial["state"] == "running":
                raise Refused("the trial is under way.")
            self._trial = None

    def apply(self, number, who):
        """Write what a trial has learnt; the line uses it from now on."""
        with self._held():
            trial = self._trial
            if trial is None or trial["number"] != number or trial["state"] != "ready":
                raise Refused("there is no such trial that is ready.")
            if trial["est"] is None:
                raise Refused("it teaches nothing new.")
            if [_key(x) for x in self._store.list_said()] != [
                _key(x) for x in trial["said"]
            ]:
                raise Refused("something else was said since. Try it again.")
            path, est = self._line.path, trial["est"]
            with hold_lock(path):
                if self._begin() != trial["from"]:
                    raise Refused("the model is another one by now. Try it again.")
                name = self._keep_review(trial["review"])
                digest = self.history.keep_model(est.save)
                more = {"review": name} | _name_said(trial["said"])
                entry = self.history.use("review", who, trial["from"], digest, **more)
            self._take_up()
            return entry

    def _take_up(self):
        """Use the model that was written."""
        self._line.load()
        self._begin()
        self._trial = None

    def _keep_review(self, review):
        name = f"{len(self.history.list_entries()) + 1:04d}.review.json"
        with replaced_when_whole(self.history.folder / name) as partial:
            partial.write_text(json.dumps(review, indent=1), "utf-8")
        return name

    def restore(self, digest, who):
        """Go back to a former model."""
        with self._held():
            known = {x["to"] for x in self.history.list_entries()}
            if digest not in known or not self.history.find_model(digest).exists():
                raise Refused("there is no such model in the history.")
            path = self._line.path
            with hold_lock(path):
                former = self._begin()  # what is there is kept, whoever wrote it
                if digest == former:
                    raise Refused("that is the model in use.")
                entry = self.history.use("restore", who, former, digest)
            self._take_up()
            return entry


def _key(image):
    return image["id"], image["said"]


def _name_said(images):
    """Return images, and what was said of each, as an entry of the history has them."""
    return {"images": [x["id"] for x in images], "said": [x["said"] for x in images]}


def _complete(said):
    parts = {"kind": said.get("kind"), "boxes": said.get("boxes") or []}
    if said["verdict"] != DEFECTIVE:
        parts = {"similar": bool(said.get("similar"))}
    return {"verdict": said["verdict"], **parts}


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
        "is_new": changes.est is not None,
        "doubt": changes.doubt,
    }
