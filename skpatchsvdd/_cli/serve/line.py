"""A line: the model of the moment, and what it says of images that arrive."""

import base64
import json
import os
import sqlite3
import threading
import time
from typing import NamedTuple

import numpy as np

from skpatchsvdd._cli.batches import cut_batches, inspect_batch, is_of_machine
from skpatchsvdd._cli.files import find_state
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.serve.metrics import Metrics
from skpatchsvdd._cli.terminal import describe_cause, printable, tell
from skpatchsvdd._cli.watch import Later, watch_folder
from skpatchsvdd._images import read_display
from skpatchsvdd._report import OVERLAY_SIZE, Page, digest_file, draw_outlined
from skpatchsvdd.drift import drift_test

# Longest side of the pictures of maps, and images that are inspected between two looks
# at what people and requests want.
_PICTURE_SIZE = 640
_AT_A_TIME = 4
# How often it is looked whether there is another model, where no folder is watched.
_LOOK_SECONDS = 1.0
# Seconds without a look at the folder after which something must be wrong.
_STANDS_STILL = 60
# States of files that are held in memory.
_N_KNOWN = 200_000
# Scores that drift is told by, at most and at least, and seconds that it is kept for.
_N_DRIFT, _LEAST_DRIFT, _DRIFT_SECONDS = 500, 20, 15
SPANS = {"hour": (3600, 60), "day": (86400, 3600)}


class Model(NamedTuple):
    """A model as it is used: the estimator, its file's digest, and what draws pages."""

    est: object
    digest: str
    page: Page


class Line:
    """Inspects what arrives in a folder with the model of the moment, and keeps it.

    `say`, if it is set, is called with a line of JSON for each image. All methods can
    be called from any thread; the model is replaced as a whole.
    """

    def __init__(self, path, store, device=None, encoder=None):
        self.path, self.store = path, store
        self.signals, self.say, self.has_failed = None, None, False
        self.encoder, self._device = encoder, device
        self._trouble, self._looked_at = None, None
        self._known = set()  # states that the store knows, of those asked for
        self._later = Later()
        self._is_closed = threading.Event()
        self._drift = {}
        self.metrics, self._loading = Metrics(), threading.Lock()
        self.model = self._stat = None
        self.load()

    def load(self):
        """Use the model that is in the file now; a batch at hand keeps the former."""
        with self._loading:
            stat, digest = _find_stat(self.path), None
            while digest != (digest := digest_file(self.path)):  # as it was loaded
                est = load_model(self.path, self._device, self.encoder)
            self.model = Model(est, digest, Page(est, "", limit=0))
            self._stat, self._drift = stat, {}

    def _refresh(self, on_change):
        """Load the model again if another program has replaced its file."""
        stat = _find_stat(self.path)
        if stat is None or stat == self._stat:
            return
        try:
            self.load()
            on_change()
        except Exception as error:
            reason = describe_cause(error)
            tell(f"{self.path} has been replaced, and is not used: {reason}")
            self._stat = _find_stat(self.path)
        else:
            tell(f"{self.path} has been replaced: it is used from now on")

    def watch(self, folder, on_change):
        """Inspect what arrives in a folder, if any, until `close` is called.

        `on_change` is called when the model's file has been replaced.
        """
        if folder is None:
            while not self._is_closed.wait(_LOOK_SECONDS):
                self._refresh(on_change)
            return
        for files in watch_folder(folder, self._is_due, tell):
            self._looked_at = time.monotonic()
            if self._is_closed.is_set():
                return
            self._refresh(on_change)
            for batch in cut_batches(files, self.model.est, _AT_A_TIME):
                self._take(batch)
                self._looked_at = time.monotonic()
                if self._is_closed.is_set():
                    return
                if self._trouble:  # the rest at another look
                    break

    @property
    def seconds_since_look(self):
        """Seconds since the folder was looked at; None where none is watched."""
        looked_at = self._looked_at
        return None if looked_at is None else time.monotonic() - looked_at

    @property
    def trouble(self):
        """What keeps images from being kept, as a text, or None."""
        seconds = self.seconds_since_look
        if seconds is not None and seconds > _STANDS_STILL:
            return f"the folder was not looked at for {seconds:.0f} seconds"
        return self._trouble

    def close(self):
        """Let `watch` end."""
        self._is_closed.set()

    def _is_due(self, state):
        if state not in self._known and self.store.knows(state):
            if len(self._known) >= _N_KNOWN:  # of files that may long be gone
                self._known.clear()
            self._known.add(state)
        return state not in self._known and self._later.is_due(state)

    def _take(self, batch):
        model, start = self.model, time.monotonic()
        outcomes = inspect_batch(batch, model.est, explain=True)
        self.metrics.measure(time.monotonic() - start, len(batch))
        for outcome in outcomes:
            if find_state(outcome.file) != outcome.state:
                continue  # it has changed, and comes again when it is whole
            if outcome.reason is None or not outcome.may_pass:
                try:
                    self._add(outcome, model)
                    self._trouble = None
                    continue
                except (OSError, sqlite3.OperationalError) as error:
                    reason = f"{outcome.file} cannot be kept: {describe_cause(error)}"
                    outcome = outcome._replace(reason=reason, passes_soon=True)
            if outcome.passes_soon:
                self._trouble = printable(outcome.reason)
            self._later.put_off(outcome)

    def _add(self, outcome, model):
        """Keep what was found of a file, and pass an alarm on."""
        image = {
            "state": f"{outcome.state:016x}",
            "file": os.fsencode(os.path.abspath(outcome.file)),
            "time": time.time(),
            "model": model.digest,
        }
        pictures = None
        if outcome.reason is None:
            own = {name: values[0] for name, values in outcome.results.items()}
            image |= _describe_row(own, model.est)
            try:
                pictures, image["digest"] = _draw(outcome, model)
            except Exception as error:  # half of another file makes decoders raise any
                if is_of_machine(error):
                    raise
                tell(f"no picture of {outcome.file}: {describe_cause(error)}")
        else:
            image |= {"verdict": "unreadable", "reason": printable(outcome.reason)}
        is_alarm = image["verdict"] == "abnormal"
        targets = self.signals.targets if self.signals and is_alarm else []
        told = describe_event(image)
        signals = [(x, lambda i: json.dumps(told | {"image": i})) for x in targets]
        number = self.store.add(image, pictures, signals)
        self._later.forget(outcome.state)
        if number is None:
            return
        self.metrics.watched.labels(image["verdict"]).inc()
        if self.say is not None:
            self.say(json.dumps(told | {"image": number}))
        if targets:
            self.signals.wake()

    def find_drift(self, span):
        """Return whether scores of the last hour or day differ from those of fit."""
        kept = self._drift.get(span)
        if kept is not None and time.monotonic() < kept[0]:
            return kept[1]
        model = self.model
        since = time.time() - SPANS[span][0]
        scores = np.array(self.store.list_scores(since, model.digest, _N_DRIFT))
        found = {"verdict": "too few images to tell", "drifted": False, "p_value": None}
        if len(scores) >= _LEAST_DRIFT:
            est = model.est
            test = drift_test(est.calibration_scores_, scores, est.calibration_groups_)
            found = {
                "verdict": test.verdict,
                "drifted": bool(test.drifted),
                "p_value": float(test.p_value),
            }
        self._drift[span] = time.monotonic() + _DRIFT_SECONDS, found
        return found

    def list_drifts(self):
        """Return pairs of a span and the p-value of its drift, where there is one."""
        drifts = [(span, self.find_drift(span)["p_value"]) for span in SPANS]
        return [(span, p_value) for span, p_value in drifts if p_value is not None]


def describe_event(image):
    """Return what is told of an image elsewhere: its name, verdict and numbers."""
    names = ("verdict", "p_value", "score", "threshold", "kind", "reason", "model")
    return {
        "event": image["state"],
        "file": printable(os.fsdecode(image["file"])),
        "time": image["time"],
        **{name: image.get(name) for name in names},
    }


def describe_result(own, est):
    """Return the answer to a request about one image, but for its map."""
    fields = ("top", "left", "bottom", "right", "area")
    row = _describe_row(own, est)
    regions = [{x: int(region[x]) for x in fields} for region in own["regions"]]
    return row | {"regions": regions}


def _describe_row(own, est):
    names = own.get("names", ())
    return {
        "verdict": "abnormal" if own["labels"] == -1 else "normal",
        "p_value": float(own["p_values"]),
        "score": float(own["scores"]),
        "threshold": float(est.offset_),
        "kind": str(names[0]["kind"]) if len(names) else None,
    }


def _draw(outcome, model):
    """Return thumb, overlay and details of an image, and the digest of its file."""
    image = read_display(outcome.file, OVERLAY_SIZE)
    (details,) = model.page.describe([outcome.file], outcome.results, pictures=[image])
    found = outcome.results.masks[0], outcome.results.regions[0]
    overlay = draw_outlined(image, *found, _PICTURE_SIZE)
    if find_state(outcome.file) != outcome.state:
        raise OSError("it was moved or written to after it was inspected")
    thumb = base64.b64decode(details["thumb"].partition(",")[2])
    kept = "size", "regions", "matches", "kinds", "distances", "map", "p_floor"
    text = json.dumps({x: details[x] for x in kept if x in details})
    return (thumb, overlay, text), details["digest"]


def _find_stat(path):
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
