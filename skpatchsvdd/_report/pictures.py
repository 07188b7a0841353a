"""Pictures for a page: small, and as text that a page can hold."""

import base64
import io

import numpy as np

# Colours of a map over its image: at the threshold, and from twice as much on.
_AT_THRESHOLD, _FAR_ABOVE = (255, 200, 0), (255, 0, 0)
_OPACITY = 0.65
# Longest side of the maps of a page, and the powers of two around the threshold between
# which their bytes lie.
_MAP_SIZE = 96
_LOWEST, _HIGHEST = -4, 4


def save_overlay(image, one_map, path):
    """Draw a map, in units of the threshold, over its image (height, width, 3).

    Nothing up to half the threshold, yellow at it, red from twice as much on.
    """
    share = np.clip(one_map - 1, 0, 1)[:, :, None]
    colour = (1 - share) * np.array(_AT_THRESHOLD) + share * np.array(_FAR_ABOVE)
    opacity = _OPACITY * np.clip(2 * one_map - 1, 0, 1)[:, :, None]
    pixels = (1 - opacity) * image + opacity * colour
    path.parent.mkdir(parents=True, exist_ok=True)
    _as_picture(pixels.round().astype(np.uint8)).save(path)


def encode_picture(pixels, size):
    """Return bytes (height, width, 3) as a JPEG of at most `size` pixels a side."""
    picture = _as_picture(pixels)
    picture.thumbnail((size, size))
    return _encode(picture, "JPEG", quality=80)


def encode_map(one_map):
    """Return a map, in units of the threshold, as a small picture.

    A byte b that is not 0 stands for 2 ** (8 b / 255 - 4) times the threshold.
    """
    with np.errstate(divide="ignore"):
        powers = np.log2(one_map.astype(np.float32))
    share = (powers - _LOWEST) / (_HIGHEST - _LOWEST)
    picture = _as_picture((255 * np.clip(share, 0, 1)).round().astype(np.uint8))
    picture.thumbnail((_MAP_SIZE, _MAP_SIZE))
    return _encode(picture, "PNG", optimize=True)


def _as_picture(pixels):
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(pixels))


def _encode(picture, kind, **options):
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    text = base64.b64encode(stream.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"
