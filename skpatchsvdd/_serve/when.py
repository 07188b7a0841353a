"""Which frames of a source are inspected."""

import threading

import numpy as np
from PIL import Image

# Seconds without motion after which a scene is still.
_STILL_SECONDS = 0.5
# Motion: of so many grey cells along a side, this part differs by this much of 255.
_CELLS, _PART, _STEP = 64, 0.01, 8
WORDS = "frame", "still", "trigger"


def make_choice(when):
    """Return what says of each frame, in their order, whether it is inspected.

    `when` is "frame" for every one, a number of seconds, "still" for the first of each
    scene that does not move any more, or "trigger" for the next one after `pull`.
    """
    if when == "trigger":
        return Trigger()
    if when == "still":
        return _StillScene()
    return (lambda frame: True) if when == "frame" else _EverySeconds(when)


class Trigger:
    """Chooses the next frame after each call of `pull`, from any thread."""

    def __init__(self):
        self._is_pulled = threading.Event()

    def pull(self):
        """Choose the next frame."""
        self._is_pulled.set()

    def __call__(self, frame):
        if not self._is_pulled.is_set():
            return False
        self._is_pulled.clear()
        return True


class _EverySeconds:
    def __init__(self, seconds):
        self._seconds, self._last = seconds, None

    def __call__(self, frame):
        last = self._last
        if last is not None and 0 <= frame.time - last < self._seconds:
            return False
        self._last = frame.time
        return True


class _StillScene:
    def __init__(self):
        self._former, self._since, self._is_taken = None, 0.0, False

    def __call__(self, frame):
        cells = _shrink(frame.image)
        if self._former is None or _has_moved(cells, self._former):
            self._former, self._since, self._is_taken = cells, frame.time, False
            return False
        if self._is_taken or frame.time - self._since < _STILL_SECONDS:
            return False
        self._is_taken = True
        return True


def _shrink(image):
    step = max(1, min(image.shape[:2]) // (4 * _CELLS))
    grey = Image.fromarray(np.ascontiguousarray(image[::step, ::step])).convert("L")
    return np.asarray(grey.resize((_CELLS, _CELLS), Image.Resampling.BOX), np.int16)


def _has_moved(cells, former):
    return np.mean(np.abs(cells - former) > _STEP) > _PART
