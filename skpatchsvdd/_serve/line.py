"""A line: the model of the moment, and what it says of images that arrive."""

import base64
import functools
import json
import os
import sqlite3
import threading
import time
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from skpatchsvdd._cli import (
    RetrySchedule,
    cut_batches,
    describe_cause,
    find_state,
    inspect_batch,
    is_of_machine,
    load_model,
    printable,
    tell,
)
from skpatchsvdd._images import read_display
from skpatchsvdd._report import OVERLAY_SIZE, Page, digest_file, draw_outlined
from skpatchsvdd._serve.metrics import Metrics
from skpatchsvdd.drift import drift_test

# Longest side of pictures of maps, and images between two looks at requests.
_PICTURE_SIZE, _AT_A_TIME = 640, 4
# How often it is looked whether there is another model, where no folder is watched.
_LOOK_SECONDS = 1.0
# Seconds without a look at the folder after which something must be wrong.
_STANDS_STILL = 60
# Seconds until it is tried again to watch what could not be watched.
_AGAIN_SECONDS = 2
# A line stands still when no image has come for so many seconds, and so many times as
# long as between two of the last ones, nights and the like left out.
_LEAST_STILL, _TIMES_LONG, _N_LAST, _LONG = 300, 3, 100, 0.98
# Scores that drift is told by, at most.
_N_DRIFT = 500
# Seconds that drift, and what else is plotted, is kept, however many pages ask.
_DRIFT_SECONDS, _SPAN_SECONDS = 15, 3
SPANS = {"hour": (3600, 60), "day": (86400, 3600)}


class Model(NamedTuple):
    """A model as it is used: the estimator, its file's digest, and what draws pages."""

    est: object
    digest: str
    page: Page


def _keep_for(seconds):
    """Let a method of `Line` keep what it returns, and make it anew after a while."""

    def decorate(method):
        @functools.wraps(method)
        def keeping(self, *args):
            key = method.__name__, *args
            made, until = self._kept.get(key, (None, 0.0))
            if time.monotonic() >= until:
                made = method(self, *args)
                self._kept[key] = made, time.monotonic() + seconds
            return made

        return keeping

    return decorate


class Line:
    """Inspects what arrives with the model of the moment, and keeps it.

    `turn` makes the context in which images are inspected; see `Turns`. `say`, if it is
    set, gets a line of JSON for each image. All methods can be called from any thread.
    """

    def __init__(
        self,
        path,
        store,
        device=None,
        encoder=None,
        read_model=load_model,
        turn=nullcontext,
    ):
        self.path, self.store = path, store
        self.alarms = self.say = self.name = self.arrivals = None
        self.has_own_threshold = False  # instead of the model's
        self.encoder, self._device = encoder, device
        self._read_model, self._turn = read_model, turn
        self._trouble, self._source_trouble, self._looked_at = None, None, None
        self._retries, self._is_closed = RetrySchedule(), threading.Event()
        self.metrics, self._loading = Metrics(), threading.Lock()
        self._opened = time.time()
        self._kept = {}  # what is plotted, and until when
        self.model = self._stat = None
        self.load()

    def load(self):
        """Use the model that is in the file now; a batch at hand keeps the former."""
        with self._loading:
            stat, digest = find_stat(self.path), None
            while digest != (digest := digest_file(self.path)):  # as it was loaded
                est = self._read_model(self.path, self._device, self.encoder)
            self.model = Model(est, digest, Page(est, "", limit=0))
            self._stat, self._kept = stat, {}

    def _refresh(self, on_change):
        """Load the model again if another program has replaced its file."""
        stat = find_stat(self.path)
        if stat is None or stat == self._stat:
            return
        try:
            self.load()
            on_change()
        except Exception as error:
            reason = describe_cause(error)
            tell(f"{self.path} has been replaced, and is not used: {reason}")
            self._stat = find_stat(self.path)
        else:
            tell(f"{self.path} has been replaced: it is used from now on")

    def watch(self, arrivals, on_change):
        """Inspect what arrives, if anything can, until `close` is called.

        `on_change` is called when the model's file has been replaced.
        """
        self.arrivals = arrivals
        if arrivals is None:
            while not self._is_closed.wait(_LOOK_SECONDS):
                self._refresh(on_change)
            return
        for files in arrivals.list_looks(self.store.knows, self._retries):
            self._looked_at = time.monotonic()
            self._source_trouble = arrivals.find_trouble()
            if not self._is_closed.is_set():
                self._refresh(on_change)
                self._inspect(files)
            if self._is_closed.is_set():
                return

    def keep_watching(self, arrivals, on_change):
        """Watch as `watch` does, again and again, whatever makes it fail."""
        while not self._is_closed.is_set():
            try:
                self.watch(arrivals, on_change)
            except Exception as error:
                reason = printable(describe_cause(error))
                if reason != self._source_trouble:
                    tell(f"{self.name}: {reason}")
                self._source_trouble = reason
                self._is_closed.wait(_AGAIN_SECONDS)

    def _inspect(self, files):
        """Inspect files; where the machine is in trouble, the rest at another look."""
        for batch in cut_batches(files, self.model.est, _AT_A_TIME):
            self._take(batch)
            self._looked_at = time.monotonic()
            if self._is_closed.is_set() or self._trouble:
                return

    @property
    def seconds_since_look(self):
        """Seconds since the folder was looked at; None where none is watched."""
        looked_at = self._looked_at
        return None if looked_at is None else time.monotonic() - looked_at

    @property
    def trouble(self):
        """What keeps images from coming or from being kept, as a text, or None."""
        if self._source_trouble is not None:
            return self._source_trouble
        seconds = self.seconds_since_look
        if seconds is not None and seconds > _STANDS_STILL:
            return f"the folder was not looked at for {seconds:.0f} seconds"
        return self._trouble

    def close(self):
        """Let `watch` end."""
        self._is_closed.set()

    def _take(self, batch):
        model = self.model
        with self._turn():
            start = time.monotonic()
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
            self._retries.put_off(outcome)

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
            results = {name: values[0] for name, values in outcome.results.items()}
            image |= _describe_row(results, model.est)
            try:
                pictures, image["digest"] = _draw(outcome, model)
            except Exception as error:  # half of another file makes decoders raise any
                if is_of_machine(error):
                    raise
                tell(f"no picture of {outcome.file}: {describe_cause(error)}")
        else:
            image |= {"verdict": "unreadable", "reason": printable(outcome.reason)}
        event = _describe_event(image)
        if self.name is not None:
            event["line"] = self.name
        is_alarm = self.alarms is not None and image["verdict"] == "abnormal"
        targets = self.alarms.targets if is_alarm else ()
        number = self.store.add(image, pictures, event, targets)
        self._retries.forget(outcome.state)
        if number is None:
            return
        self.metrics.watched.labels(image["verdict"]).inc()
        if self.say is not None:
            self.say(json.dumps(event | {"image": number}))
        if targets:
            self.alarms.wake()

    @property
    @_keep_for(_SPAN_SECONDS)
    def standstill(self):
        """Since when no image has come, and how often they did; None if they do."""
        times = self.store.list_times(_N_LAST)
        source = self.arrivals.describe() if self.arrivals else {"has_ended": True}
        if len(times) < 2 or (source and source["has_ended"]):
            return None
        usual, long = np.quantile(-np.diff(times), [0.5, _LONG]).tolist()
        quiet = time.time() - max(times[0], self._opened)
        is_still = quiet > max(_LEAST_STILL, _TIMES_LONG * long)
        return {"since": times[0], "usual": usual} if is_still else None

    def inspect_again(self, files, est):
        """Yield outcomes of files, which nobody keeps, in turn with what arrives."""
        for batch in cut_batches(files, est, _AT_A_TIME):
            with self._turn():
                outcomes = inspect_batch(batch, est)
            yield from outcomes

    @_keep_for(_SPAN_SECONDS)
    def describe_span(self, span):
        """Return what is plotted of the last hour or day, and whether scores drift."""
        seconds, length = SPANS[span]
        start = (time.time() - seconds) // length * length + length
        n = seconds // length
        images, alarms, means = [0] * n, [0] * n, [None] * n
        for i, n_images, n_alarms, mean in self.store.list_buckets(start, length):
            if 0 <= i < n:
                images[i], alarms[i], means[i] = n_images, n_alarms, mean
        counts = {"images": images, "alarms": alarms, "means": means}
        drift = self.find_drift(span)
        return {"start": start, "length": length, **counts, "drift": drift}

    @_keep_for(_DRIFT_SECONDS)
    def find_drift(self, span):
        """Return whether scores of the last hour or day differ from those of fit."""
        est, digest, _ = self.model
        since = time.time() - SPANS[span][0]
        scores = np.array(self.store.list_scores(since, digest, _N_DRIFT))
        if not len(scores):
            return {"verdict": "not tested yet", "drifted": False, "p_value": None}
        test = drift_test(est.calibration_scores_, scores, est.calibration_groups_)
        drifted, p_value = bool(test.drifted), float(test.p_value)
        return {"verdict": test.verdict, "drifted": drifted, "p_value": p_value}

    def list_drifts(self):
        """Return pairs of a span and the p-value of its drift, where there is one."""
        drifts = [(span, self.find_drift(span)["p_value"]) for span in SPANS]
        return [(span, p_value) for span, p_value in drifts if p_value is not None]


def _describe_event(image):
    """Return what other programs learn of an image: its name, verdict and numbers."""
    names = ("verdict", "p_value", "score", "threshold", "kind", "reason", "model")
    return {
        "event": image["state"],
        "file": printable(os.fsdecode(image["file"])),
        "time": image["time"],
        **{name: image.get(name) for name in names},
    }


def describe_threshold(est):
    """Return the threshold of an estimator, and how many good images raise an alarm."""
    offset, calibration = est.offset_, est._calibration
    return {
        "threshold": float(offset),
        "is_fixed": est.fixed_threshold_ is not None,
        "false_alarm_rate": calibration.alarm_rate(offset),
        "false_alarm_range": calibration.alarm_range(offset),
    }


def describe_result(results, est):
    """Return the answer to a request about one image, but for its map."""
    fields = ("top", "left", "bottom", "right", "area")
    regions = [{x: int(region[x]) for x in fields} for region in results["regions"]]
    return _describe_row(results, est) | {"regions": regions}


def _describe_row(results, est):
    kinds = results.get("names", ())
    return {
        "verdict": "abnormal" if results["labels"] == -1 else "normal",
        "p_value": float(results["p_values"]),
        "score": float(results["scores"]),
        "threshold": float(est.offset_),
        "kind": str(kinds[0]["kind"]) if len(kinds) else None,
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
    names = "size", "regions", "matches", "kinds", "distances", "map", "note", "p_floor"
    text = json.dumps({x: details[x] for x in names if x in details})
    return (thumb, overlay, text), details["digest"]


def find_stat(path):
    """Return what is another for a file that was replaced, or None if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
