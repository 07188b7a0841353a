"""Image files: their pixels, and their shape without reading the pixels."""

import errno
import functools
import io
import math
import os
import stat
import warnings
from contextlib import contextmanager

import numpy as np

# Formats that are opened, whatever the name of a file says; see `folders.ENDINGS`.
# Pillow knows others: for one of them, EPS, it runs a program.
_FORMATS = (
    *("PNG", "JPEG", "BMP", "DIB", "GIF", "PPM"),  # those that it has at hand
    *("TIFF", "WEBP", "JPEG2000", "TGA", "AVIF"),
)
# What the system says that is no fault of a file: it may be readable later.
_OF_SYSTEM = {
    *(errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
    *(errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN),
}
# Modes of pillow that have no colour, and how those of more than 8 bits begin.
_GREY, _MORE_BITS = ("1", "L", "LA", "La"), ("I", "F")
# Orientations, by their number in EXIF, that exchange width and height.
_TURNED = (5, 6, 7, 8)
_UPRIGHT, _ORIENTATION = 1, 0x0112
# A photograph with previews of itself; the photograph comes first.
_WITH_PREVIEWS = "MPO"
# Pixels of an image, at most: a file of kilobytes can hold so many that they take
# minutes and all memory. And pillow's own limit, where nobody has set another.
MAX_PIXELS = 100_000_000
_PILLOWS_LIMIT = 2**30 // 4 // 3
# How many times the size that it is resized to an image has, at least, that is decoded
# at a part of its own.
_TIMES_ENOUGH = 2
_ALLOW_MORE = (
    "Save a smaller copy or, if you trust it, allow more: --max-pixels on the command "
    "line, PIL.Image.MAX_IMAGE_PIXELS in Python"
)


def read_image(file, max_pixels=None, size=None):
    """Read one file: (height, width) or (height, width, 3).

    uint8, uint16 for files of 16 bits, or float32 for files of floats. Turned upright
    as EXIF says; other colours become RGB, and alpha is left out. At most `max_pixels`
    are decoded, None is `find_max_pixels()`. A JPEG of more pixels that will be resized
    to a `size` (height, width), much less, is decoded at a half, a fourth or an eighth
    of its own size. No other is: what is found in an image depends on all its pixels.
    """
    limit = find_max_pixels() if max_pixels is None else max_pixels
    with _named(file), _open(file) as opened:
        if size is not None and math.prod(opened.size) > limit:
            # Its shorter side keeps so many pixels; formats but JPEG stay whole.
            opened.draft(None, (_TIMES_ENOUGH * max(size),) * 2)
        _check_n_pixels(opened, limit)
        return _to_array(opened)


def read_bytes(data, name):
    """Return the image in the bytes of a file, as `read_image` would."""
    with _named(name), _open(data) as opened:
        _check_n_pixels(opened, find_max_pixels())
        return _to_array(opened)


def read_known(file, shape, size):
    """Read a file of a known shape, to be resized, as (height, width, channels)."""
    image = read_image(file, size=size)
    image = image if image.ndim == 3 else image[:, :, None]
    if image.shape != _decoded_shape(shape, image.shape):
        raise ChangedFileError(
            f"{file} has changed while it was read: its shape was {shape} and is "
            f"{image.shape}. Call again when nothing writes to the files."
        )
    return image


def _decoded_shape(shape, found):
    """Return the shape of a file once it is decoded, at a part of its size if large."""
    if shape[0] * shape[1] <= find_max_pixels():
        return shape
    ratio = max(round(shape[0] / found[0]), 1)
    return -(-shape[0] // ratio), -(-shape[1] // ratio), shape[2]


def read_small(file, size):
    """Read a file as `read_image` does, to look at.

    A JPEG is decoded at the smallest part of its size whose longer side has `size`.
    """
    with _named(file), _open(file) as opened:
        shortest = max(size * min(opened.size) // max(opened.size), 1)
        opened.draft(None, (shortest, shortest))
        _check_n_pixels(opened, find_max_pixels())
        return _to_array(opened)


def find_max_pixels():
    """Return how many pixels an image may have, unless a call says something else.

    That is `MAX_PIXELS`, or what somebody has set ``PIL.Image.MAX_IMAGE_PIXELS`` to.
    """
    limit = _import_pillow().MAX_IMAGE_PIXELS
    if limit == _PILLOWS_LIMIT:
        return MAX_PIXELS
    return math.inf if limit is None else limit


@contextmanager
def limited_pixels(max_pixels):
    """Let files have so many pixels for a while, in all of this process."""
    module = _import_pillow()
    former, module.MAX_IMAGE_PIXELS = module.MAX_IMAGE_PIXELS, max_pixels
    try:
        with warnings.catch_warnings():
            # What pillow warns of names no file: too large and damaged ones are
            # refused, and that says more.
            warnings.filterwarnings("ignore", module="PIL")
            yield
    finally:
        module.MAX_IMAGE_PIXELS = former


def _check_n_pixels(image, limit):
    width, height = image.size
    if width * height > limit:
        raise _Refused(
            f"it has {height:,} x {width:,} pixels, {width * height / 1e6:.0f} million "
            f"and more than the limit of {limit / 1e6:g} million. {_ALLOW_MORE}."
        )


def read_shape(file, name=None):
    """Read the (height, width, n_channels) of a file, or of its bytes, no pixels."""
    with _named(name or file), _open(file) as opened:
        _check_one_frame(opened)
        width, height = opened.size
        # PNG's own method would read the whole file.
        exif = _import_pillow().Image.getexif(opened)
        if exif.get(_ORIENTATION) in _TURNED:
            width, height = height, width
        is_grey = opened.mode in _GREY or opened.mode.startswith(_MORE_BITS)
        return height, width, 1 if is_grey else 3


def has_bytes(file):
    """Whether the pixels of a file are bytes, by its beginning."""
    with _named(file), _open(file) as opened:
        return not opened.mode.startswith(_MORE_BITS)


def read_pillow_image(image, name):
    """Return one of pillow's images as `read_image` would its file."""
    with _named(name):
        _check_n_pixels(image, find_max_pixels())
        return _to_array(image)


@contextmanager
def _named(name):
    """Let what goes wrong name the file: damaged bytes make decoders raise anything."""
    module = _import_pillow()
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {name}.") from error
    except MemoryError as error:
        raise MemoryError(
            f"there is not enough memory to read {name}, which may be whole. Let other "
            "programs end, or save a smaller copy of it."
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_SYSTEM:
            raise
        reason, way_out = str(error) or type(error).__name__, ""
        if isinstance(error, module.DecompressionBombError):
            # Pillow would name twice the limit.
            reason = f"it has more pixels than the limit of {find_max_pixels():,}"
            way_out = f". {_ALLOW_MORE}."
        elif isinstance(error, module.UnidentifiedImageError):
            reason = "it is of no format that is known here, or damaged"
            way_out = ". Leave it out, or save it again."
        elif isinstance(error, PermissionError):
            reason, way_out = error.strerror, ". Allow it to be read, or leave it out."
        elif not isinstance(error, _Refused):
            way_out = ". Leave it out, or save it again."
        raise ImageFileError(
            f"{name} cannot be read as an image: {reason}{way_out}"
        ) from error


class ImageFileError(ValueError):
    """A file cannot be read as an image, or not be used; the message names it."""


class ChangedFileError(RuntimeError):
    """A file is not what it was; the message names it."""


class _Refused(ValueError):
    """What is wrong with an image, and the way out."""


def _open(file):
    if isinstance(file, bytes):
        if not file:
            raise _Refused("there is not a byte.")
        return _import_pillow().open(io.BytesIO(file), formats=_list_formats())
    found = os.stat(file)
    if stat.S_ISDIR(found.st_mode):
        raise _Refused(
            "it is a folder. Pass the files in it: "
            "skpatchsvdd.datasets.load_images(folder, as_paths=True).images."
        )
    if not stat.S_ISREG(found.st_mode):  # reading could wait, or go on, for ever
        raise _Refused("it is a pipe, a socket or a device, not a file. Leave it out.")
    if found.st_size == 0:
        raise _Refused("it is empty, a file of 0 bytes. Leave it out.")
    return _import_pillow().open(file, formats=_list_formats())


@functools.cache
def _list_formats():
    """Return the formats to open that this version of pillow knows."""
    module = _import_pillow()
    module.init()
    return [name for name in _FORMATS if name in module.OPEN]


def _import_pillow():
    try:
        from PIL import Image
    except ImportError as error:
        message = "reading image files needs pillow: pip install pillow"
        raise ImportError(message) from error
    return Image


def _check_one_frame(image):
    n_frames = getattr(image, "n_frames", 1)
    if n_frames > 1 and image.format != _WITH_PREVIEWS:
        raise _Refused(
            f"it has {n_frames} frames or pages. Save each that matters as a file of "
            "its own."
        )


def _to_array(image):
    _check_one_frame(image)
    # Each of pillow's own ways makes a copy, also where there is nothing to do.
    if image.getexif().get(_ORIENTATION, _UPRIGHT) != _UPRIGHT:
        from PIL import ImageOps

        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits, in whatever order of bytes
        pixels = np.asarray(image)
        if pixels.min() < 0 or pixels.max() > 65535:
            raise _Refused("it has more than 16 bits a pixel. Save it with 16.")
        return pixels.astype(np.uint16)
    if image.mode == "F":
        pixels = np.asarray(image, dtype=np.float32)
        if not np.isfinite(pixels).all():
            raise _Refused("it holds NaN or infinity. Fill in such pixels.")
        return pixels
    mode = "L" if image.mode in _GREY else "RGB"
    return np.asarray(image if image.mode == mode else image.convert(mode))
