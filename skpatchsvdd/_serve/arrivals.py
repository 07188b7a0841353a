"""What arrives at a line: the images of a folder, or frames of a source."""

import io
import os
import threading
import time
from datetime import datetime
from pathlib import Path

import numpy as np
from PIL import Image

from skpatchsvdd._cli import FolderWatcher, describe_cause, find_state, printable, tell
from skpatchsvdd._serve.sources import Frame, Trigger, hide_secrets, make_choice
from skpatchsvdd._utils import replaced_when_whole

# Frames that wait to be inspected, at most: later ones are dropped.
_MOST_WAITING = 8
# Seconds between two looks where nothing comes, and until a source that fails is opened
# again: at first, and at most; twice as long each time.
_LOOK_SECONDS = 1.0
_FIRST_WAIT, _LONGEST_WAIT = 1, 30
# Seconds without a frame that are too many, and that a source has to end.
_SILENT_SECONDS, _LAST_SECONDS = 10, 7
# Longest side of the picture of a source, and how well lossless files are compressed.
_PICTURE_SIZE, _LEVEL = 640, 1


class FolderArrivals:
    """The images that other programs write into a folder."""

    trigger = picture = None

    def __init__(self, folder):
        self._folder = folder

    def list_looks(self, is_inspected, retries):
        """Return an endless iterable of what has arrived; see `FolderWatcher`."""
        return FolderWatcher(self._folder, is_inspected, retries, tell)

    def find_trouble(self):
        """Return why nothing can arrive, or None."""
        if os.path.isdir(self._folder):
            return None
        return f"the folder {self._folder} is gone. Images are seen when it is back."

    def describe(self):
        """Return what the page shows of a source: nothing of a folder."""

    def close(self):
        """End nothing: other programs write, and the line itself looks."""


class FrameArrivals:
    """Frames of a source, written into a folder and inspected as other files are.

    A thread reads the source, opens it again where it fails, and writes the frames that
    `when` chooses; see `make_choice`. Those that come while `_MOST_WAITING` others wait
    are dropped and counted. `list_old` returns which files are no longer kept.
    """

    def __init__(self, source, when, folder, find_channels, list_old):
        self._source, self._choose = source, make_choice(when)
        self._name = printable(hide_secrets(getattr(source, "name", "the source")))
        self._can_wait = getattr(source, "can_wait", False)
        self._folder = Path(folder).absolute()
        self._find_channels = find_channels
        self._list_old, self._when = list_old, when
        self._folder.mkdir(parents=True, exist_ok=True)
        self._waiting = {}  # files that are not inspected yet, in their order
        self._arrived, self._closed = threading.Event(), threading.Event()
        self._counts = {"frames": 0, "taken": 0, "dropped": 0}
        self._latest, self._heard = None, time.monotonic()
        self._reason = self._disk_reason = None
        self._has_ended = False
        self._thread = threading.Thread(target=self._read, daemon=True, name="source")
        self._thread.start()

    @property
    def trigger(self):
        """What chooses the next frame, if this source waits for one."""
        return self._choose if isinstance(self._choose, Trigger) else None

    def list_looks(self, is_inspected, retries):
        """Yield, look by look, files of frames that are to be inspected."""
        for file in sorted(self._folder.glob("*.png")):  # a kill may have left some
            self._waiting.setdefault(str(file))
        while True:
            due = []
            for file in list(self._waiting):
                state = find_state(file)
                if state is None or is_inspected(state):
                    del self._waiting[file]
                elif retries.is_due(state):
                    due.append(file)
            yield due
            if due:
                self._forget()
            else:
                self._arrived.wait(_LOOK_SECONDS)
                self._arrived.clear()

    def _forget(self):
        """Remove the files that are not kept any more; no others are in the folder."""
        for file in map(Path, self._list_old()):
            if file.parent == self._folder:
                file.unlink(missing_ok=True)

    def find_trouble(self):
        """Return why nothing comes, or None."""
        reason = self._disk_reason or self._reason
        seconds = time.monotonic() - self._heard
        if reason is None and not self._has_ended and seconds > _SILENT_SECONDS:
            reason = f"no picture has come from {self._name} for {seconds:.0f} s"
        return reason

    def describe(self):
        """Return what the page shows of the source."""
        age = None if self._latest is None else time.monotonic() - self._heard
        return self._counts | {
            "name": self._name,
            "when": self._when,
            "has_ended": self._has_ended,
            "age": age,
            "trouble": self.find_trouble(),
        }

    @property
    def picture(self):
        """The last frame as a JPEG, or None."""
        if self._latest is None:
            return None
        image, stream = Image.fromarray(self._latest), io.BytesIO()
        image.thumbnail((_PICTURE_SIZE, _PICTURE_SIZE))
        image.save(stream, "JPEG", quality=80)
        return stream.getvalue()

    def close(self):
        """End reading."""
        self._closed.set()
        self._arrived.set()
        self._thread.join(_LAST_SECONDS)

    def _read(self):
        """Read the source until it ends or `close` is called."""
        wait = _FIRST_WAIT
        while not self._closed.is_set():
            try:
                for frame in self._source.frames():
                    wait, self._reason = _FIRST_WAIT, None
                    self._take(Frame(*frame))
                    if self._closed.is_set():
                        return
                if self._can_wait:
                    self._has_ended = True
                    return
                reason = f"{self._name} sends no more pictures"
            except Exception as error:  # whatever cameras, networks and drivers raise
                reason = printable(hide_secrets(describe_cause(error)))
            if self._reason is None:
                tell(f"{reason}; tried again and again")
            self._reason = f"{reason}. It is tried again in {wait} s."
            self._closed.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _take(self, frame):
        """Show a frame, and write it if it is to be inspected and there is room."""
        image = _check_image(frame.image)
        self._counts["frames"] += 1
        self._latest, self._heard = image, time.monotonic()
        if not self._choose(frame):
            return
        while len(self._waiting) >= _MOST_WAITING:
            if not self._can_wait:
                self._counts["dropped"] += 1
                return
            if self._closed.wait(0.02):
                return
        try:
            file = self._write(image)
        except OSError as error:
            self._disk_reason = f"frames cannot be kept: {describe_cause(error)}"
            self._counts["dropped"] += 1
            return
        self._disk_reason = None
        self._counts["taken"] += 1
        self._waiting[str(file)] = None
        self._arrived.set()

    def _write(self, image):
        file = self._folder / f"{datetime.now():%Y%m%d-%H%M%S-%f}.png"
        picture = Image.fromarray(image)
        if self._find_channels() == 1:
            picture = picture.convert("L")
        with replaced_when_whole(file) as partial:
            picture.save(partial, "PNG", compress_level=_LEVEL)
        return file


def _check_image(image):
    is_image = np.ndim(image) == 2 or np.shape(image)[2:] == (3,)
    if getattr(image, "dtype", None) != np.uint8 or not is_image:
        raise ValueError(
            "the source must give arrays of bytes, of shape (height, width) or "
            "(height, width, 3)"
        )
    return np.ascontiguousarray(image)
