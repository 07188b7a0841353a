"""Image files: their pixels, and their shape without reading the pixels."""

from contextlib import contextmanager

import numpy as np

# Modes of pillow that have no colour.
_GREY = ("1", "L", "LA", "La")
# Orientations, by their number in EXIF, that exchange width and height.
_TURNED = (5, 6, 7, 8)
_ORIENTATION = 0x0112


def read_image(file):
    """Read one file: (height, width) or (height, width, 3).

    uint8, uint16 for files of 16 bits, or float32 for files of floats.
    """
    image_module, ops = _import_pillow()
    with _opened(file, image_module) as opened:
        return _to_array(ops.exif_transpose(opened), file)


def read_shape(file):
    """Read the (height, width, n_channels) of a file, but not its pixels."""
    image_module, _ = _import_pillow()
    with _opened(file, image_module) as opened:
        width, height = opened.size
        # PNG's own method would read the whole file.
        if image_module.Image.getexif(opened).get(_ORIENTATION) in _TURNED:
            width, height = height, width
        return height, width, 1 if _is_grey(opened.mode) else 3


@contextmanager
def _opened(file, image_module):
    """Open a file; what goes wrong names it."""
    try:
        with image_module.open(file) as opened:
            yield opened
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {file}.") from error
    except (OSError, SyntaxError, image_module.DecompressionBombError) as error:
        raise ValueError(f"{file} cannot be read as an image: {error}") from error


def _import_pillow():
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError(
            "reading image files needs pillow: pip install skpatchsvdd[images]"
        ) from error
    return Image, ImageOps


def _is_grey(mode):
    return mode in _GREY or mode == "F" or mode.startswith("I")


def _to_array(image, file):
    if image.mode.startswith("I"):  # 16 bits, in whatever order of bytes
        pixels = np.asarray(image)
        if pixels.min() < 0 or pixels.max() > 65535:
            raise ValueError(f"{file} has more than 16 bits a pixel.")
        return pixels.astype(np.uint16)
    if image.mode == "F":
        return np.asarray(image, dtype=np.float32)
    return np.asarray(image.convert("L" if image.mode in _GREY else "RGB"))
