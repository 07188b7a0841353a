"""Pictures for a page: small, and as text that a page can hold."""

import base64
import io
import os

import numpy as np

from skpatchsvdd._images import read_display

# Longest side of images to look at, with or without their maps, and of maps that a page
# holds.
OVERLAY_SIZE = 1000
_MAP_SIZE = 96
# Colours of a map over its image: at the threshold, and from twice as much on.
_AT_THRESHOLD, _FAR_ABOVE = (255, 200, 0), (255, 0, 0)
_OPACITY = 0.65
_OUTLINE = (255, 255, 255)
# The powers of two around the threshold between which the bytes of a page's maps lie.
_LOWEST, _HIGHEST = -4, 4
# Codes of unequal length and nothing else: pictures of photographs hold nothing twice,
# and a search for it takes longer, for larger files.
_QUICK = {"compress_level": 1, "compress_type": 2}


def save_overlay(image, one_map, path):
    """Draw a map over its image: a picture of at most `OVERLAY_SIZE` pixels a side.

    Nothing up to half the threshold, yellow at it, red from twice as much on. The image
    is a path or an array, the map in units of the threshold, in any size.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _draw_over(image, one_map, OVERLAY_SIZE).save(path, **_QUICK)


def draw_overlay(image, one_map, mask, size):
    """Return the picture of `save_overlay` with the outline of a mask, as a JPEG."""
    from PIL import ImageChops, ImageFilter

    picture = _draw_over(image, one_map, size)
    shape = _as_picture(255 * mask.astype(np.uint8)).resize(picture.size)
    grown = shape.filter(ImageFilter.MaxFilter(3))
    picture.paste(_OUTLINE, mask=ImageChops.subtract(grown, shape))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=82)
    return stream.getvalue()


def _draw_over(image, one_map, size):
    from PIL import Image

    if isinstance(image, str | os.PathLike) or max(image.shape[:2]) > size:
        image = read_display(image, size)
    picture = _as_picture(image)
    one_map = _thin_out(one_map, max(picture.size))
    values = _as_picture((np.clip(one_map, 0, 2) * 127.5).astype(np.uint8))
    values = values.resize(picture.size, Image.Resampling.BILINEAR)
    colours = Image.merge("RGB", [values.point(table) for table in _COLOURS])
    return Image.composite(colours, picture, values.point(_OPACITIES))


def _make_tables():
    """Return colours, and opacities, for the bytes of a map: 255 is twice as much."""
    share = np.clip(np.arange(256) / 127.5 - 1, 0, 1)[:, None]
    colours = (1 - share) * np.array(_AT_THRESHOLD) + share * np.array(_FAR_ABOVE)
    opacities = 255 * _OPACITY * np.clip(np.arange(256) / 63.75 - 1, 0, 1)
    return [x.round().astype(int).tolist() for x in (*colours.T, opacities)]


*_COLOURS, _OPACITIES = _make_tables()


def encode_picture(pixels, size):
    """Return bytes (height, width, 3) as a JPEG of at most `size` pixels a side."""
    picture = _as_picture(pixels)
    picture.thumbnail((size, size))
    return _encode(picture, "JPEG", quality=80)


def encode_map(one_map):
    """Return a map, in units of the threshold, as a small picture.

    A byte b that is not 0 stands for 2 ** (8 b / 255 - 4) times the threshold.
    """
    one_map = _thin_out(one_map, 2 * _MAP_SIZE)
    picture = _as_picture(one_map.astype(np.float32))
    picture.thumbnail((_MAP_SIZE, _MAP_SIZE))
    with np.errstate(divide="ignore"):  # between pixels it may fall below 0
        powers = np.log2(np.maximum(np.asarray(picture), 0))
    share = (powers - _LOWEST) / (_HIGHEST - _LOWEST)
    picture = _as_picture((255 * np.clip(share, 0, 1)).round().astype(np.uint8))
    return _encode(picture, "PNG", optimize=True)


def encode_mask(mask, size):
    """Return a mask as a picture of at most `size` pixels a side; no pixel is lost."""
    from PIL import Image

    picture = _as_picture(mask.astype(np.float32))
    picture.thumbnail((size, size), Image.Resampling.BOX)
    picture = _as_picture(255 * (np.asarray(picture) > 0).astype(np.uint8))
    return _encode(picture, "PNG", optimize=True)


def _thin_out(one_map, size):
    """Return every few pixels of a map, its longest side no shorter than `size`.

    A map is smooth: no pixel differs much from the next.
    """
    step = max(max(one_map.shape) // size, 1)
    return one_map[::step, ::step]


def _as_picture(pixels):
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(pixels))


def _encode(picture, kind, **options):
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    text = base64.b64encode(stream.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"
