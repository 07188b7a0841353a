"""Frames of cameras, videos and sources of users, and which of them are inspected."""

import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from skpatchsvdd._cli import import_named

VIDEOS = {".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv"}
_OWN = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
# Milliseconds to open a camera and to get a picture; seconds to ask what is wrong.
_OPEN_MS, _READ_MS, _ASK_SECONDS = 15000, 5000, 2
_PORTS = {"http": 80, "https": 443, "rtsp": 554, "rtsps": 322, "rtmp": 1935}
# Seconds without motion after which a scene is still.
_STILL_SECONDS = 0.5
# Motion: of so many grey cells along a side, this part differs by this much of 255.
_CELLS, _PART, _STEP = 64, 0.01, 8
WORDS = "frame", "still", "trigger"


class Frame(NamedTuple):
    """A picture, and the second it is of, by a clock that is never set back."""

    image: np.ndarray  # (height, width, 3), red first, or (height, width), bytes
    time: float


class Source:
    """Frames with times: what has such a method `frames`, and perhaps the rest.

    `name` is what people see of it. `can_wait` says that no frame is lost while others
    are inspected, as in a file.
    """

    name, can_wait = "source", False

    def frames(self):
        """Yield each `Frame`, or a pair that could be one, as it comes.

        An exception says what is wrong, and `frames` is called again later; so it is
        where a source that cannot wait yields no more.
        """
        raise NotImplementedError


class VideoSource(Source):
    """A camera, by its index or address, or a file of a video, read by OpenCV."""

    def __init__(self, place):
        self._place = int(place) if str(place).isdecimal() else place
        self._is_address = "://" in str(place)
        self.can_wait = not self._is_address and isinstance(self._place, str)
        is_camera = isinstance(self._place, int)
        named = hide_secrets(place) if self._is_address else os.path.basename(place)
        self.name = f"camera {place}" if is_camera else named

    def frames(self):
        """Yield each frame; a camera that fails raises, a file ends."""
        cv2 = _import_cv2()
        capture = self._open(cv2)
        try:
            if not capture.isOpened():
                raise OSError(self._explain())
            while True:
                is_there, image = capture.read()
                if not is_there:
                    break
                position = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
                now = position if self.can_wait else time.monotonic()
                yield Frame(image[..., ::-1] if image.ndim == 3 else image, now)
        finally:
            capture.release()
        if not self.can_wait:
            raise OSError(f"{self.name} sends no more pictures")

    def _open(self, cv2):
        if isinstance(self._place, int):
            return cv2.VideoCapture(self._place)
        times = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _OPEN_MS]
        times += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, _READ_MS]
        return cv2.VideoCapture(self._place, cv2.CAP_FFMPEG, times)

    def _explain(self):
        """Return why it cannot be opened, as far as that can be found out."""
        if isinstance(self._place, int):
            return f"{self.name} cannot be opened: is it there, and used by no other?"
        if not self._is_address:
            is_there = os.path.isfile(self._place)
            return f"{self._place} {'is not a video' if is_there else 'is not there'}"
        try:
            parts = urlsplit(self._place)
            host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme, 80)
            socket.create_connection((host, port), _ASK_SECONDS).close()
        except socket.gaierror:
            return f"{self.name}: there is no machine of that name on the network"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return f"{self.name}: the camera does not answer ({reason})"
        return (
            f"{self.name}: the camera answers, and sends no video: check the rest of "
            "the address, the user and the password"
        )


def _import_cv2():
    # Before it is imported: FFmpeg prints addresses, which may hold passwords.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")
    try:
        import cv2
    except ImportError as error:
        raise ImportError(
            "cameras and videos need OpenCV: pip install opencv-python-headless"
        ) from error
    return cv2


def hide_secrets(text):
    """Return text in which addresses have neither user and password nor a query."""
    text = re.sub(r"://\S*@", "://***@", str(text))
    return re.sub(r"(://[^\s?]*)\?\S*", r"\1?***", text)


def find_kind(source):
    """Return "camera", "own", "video" or "folder", whether or not it is there."""
    if source.isdecimal() or "://" in source:
        return "camera"
    if re.fullmatch(_OWN, source):
        return "own"
    return "video" if Path(source).suffix.lower() in VIDEOS else "folder"


def make_source(source):
    """Return the `Source` that a text means; package.module:name is one of a user."""
    if find_kind(source) != "own":
        return VideoSource(source)
    try:
        found = import_named(source)()
    except (ImportError, AttributeError) as error:
        raise ImportError(f"source {source} cannot be imported: {error}") from error
    if not hasattr(found, "frames"):
        raise TypeError(f"source {source} must return an object that has frames()")
    return found


def make_choice(when):
    """Return what says of each frame, in their order, whether it is inspected.

    `when` is "frame" for every one, a number of seconds, "still" for the first of each
    scene that stands still, or "trigger" for the next one after `pull`.
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
        former = self._former
        if former is None or np.mean(np.abs(cells - former) > _STEP) > _PART:
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
