"""Pictures for a page: small, and as text that a page can hold."""

import base64
import io
import os
import textwrap
from functools import cache

import numpy as np
from scipy.ndimage import maximum_filter

from skpatchsvdd._images import read_display

# Longest side of images to look at, and of maps that a page holds.
OVERLAY_SIZE = 1000
_MAP_SIZE = 96
# Regions that are numbered and listed, those with the highest peaks.
N_REGIONS = 10
# Colours of a map over its image: at the threshold, and from twice as much on.
_AT_THRESHOLD, _FAR_ABOVE = (255, 200, 0), (255, 0, 0)
_OPACITY = 0.65
# An outline is light inside, dark outside; a pixel of each for so many of a picture.
_LIGHT, _DARK, _PIXELS_A_LINE = (255, 255, 255), (20, 20, 20), 500
# On a sheet: the ground, the side that small images are enlarged to, pixels between the
# parts, and sides of patches and of the legend.
_GROUND, _SHEET_SIZE, _GAP, _PATCH, _LEGEND = (245, 246, 248), 400, 12, 96, (150, 12)
# Pictures with less than this have no room for numbers.
_ROOM_FOR_NUMBERS = 160
_LEAST_OUTLINED = 320  # longest side of a picture that a page outlines
# The powers of two around the threshold between which the bytes of a page's maps lie.
_LOWEST, _HIGHEST = -4, 4
# Photographs hold nothing twice: a search for it takes longer, for larger files.
_QUICK = {"compress_level": 1, "compress_type": 2}


def save_sheet(path, image, one_map, mask, regions, pairs=()):
    """Save what was found in an image as one picture.

    The image, with what is abnormal outlined and numbered; beside it the same under its
    map, in units of the threshold, and the patches of `pairs`, each beside the nearest
    normal one.
    """
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    picture = _open(image, OVERLAY_SIZE)
    shape = picture.width, picture.height
    if max(shape) < _SHEET_SIZE:
        shape = [round(x * _SHEET_SIZE / max(shape)) or 1 for x in shape]
        picture = picture.resize(shape, Image.Resampling.NEAREST)
    half = picture.resize([max(x // 2, 1) for x in shape])
    beside = [_draw_map(half, one_map), _draw_legend()]
    beside += [_draw_pair(pair) for pair in pairs]
    _outline(picture, mask, regions)
    _stack(picture, beside).save(path, **_QUICK)


def draw_outlined(image, mask, regions, size):
    """Return an image with its mask outlined and regions numbered, as a JPEG."""
    picture = _open(image, size)
    # Small ones are enlarged: numbers have room. Lines show in small cards, too.
    picture = picture.resize(
        [x * -(-_LEAST_OUTLINED // max(picture.size)) for x in picture.size]
    )
    _outline(picture, mask, regions, _PIXELS_A_LINE // 2)
    return _as_bytes(picture, "JPEG", quality=82)


def _open(image, size):
    if isinstance(image, str | os.PathLike) or max(image.shape[:2]) > size:
        image = read_display(image, size)
    return _as_picture(image).convert("RGB")


def _outline(picture, mask, regions, pixels_a_line=_PIXELS_A_LINE):
    """Draw the outline of a mask around it, and numbers of regions beside them."""
    mask = np.asarray(mask) != 0
    if not mask.any():
        return
    wide = max(round(max(picture.size) / pixels_a_line), 1)
    shape = _scale_mask(mask, picture.size)
    light = maximum_filter(shape, 2 * wide + 1)
    dark = maximum_filter(light, 2 * wide + 1)
    picture.paste(_DARK, mask=_as_picture(dark - light))
    picture.paste(_LIGHT, mask=_as_picture(light - shape))
    if max(picture.size) >= _ROOM_FOR_NUMBERS:
        scale = picture.height / mask.shape[0], picture.width / mask.shape[1]
        for i, region in reversed(list(enumerate(regions[:N_REGIONS], 1))):
            top, left = region["top"] * scale[0], region["left"] * scale[1]
            _number(picture, i, left - 2 * wide, top - 2 * wide)


def _scale_mask(mask, size):
    """Return a mask as bytes in another (width, height); no pixel is lost."""
    from PIL import Image

    is_enlarged = size[0] > mask.shape[1]
    way = Image.Resampling.BILINEAR if is_enlarged else Image.Resampling.BOX
    share = np.asarray(_as_picture(mask.astype(np.float32)).resize(size, way))
    return 255 * (share > is_enlarged / 2).astype(np.uint8)


def _number(picture, number, left, top):
    """Draw a number whose lower left corner is at a place, or as near as it can be."""
    from PIL import ImageDraw

    draw, font = ImageDraw.Draw(picture), _load_font(max(max(picture.size) // 55, 11))
    box = draw.textbbox((0, 0), str(number), font)
    wide, high = box[2] - box[0] + 5, box[3] - box[1] + 5
    left = min(max(left, 0), max(picture.width - wide, 0))
    top = max(top - high, 0)
    draw.rectangle((left, top, left + wide - 1, top + high - 1), _DARK)
    draw.text((left + 2 - box[0], top + 2 - box[1]), str(number), _LIGHT, font)


@cache
def _load_font(size):
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size)
    except TypeError:  # before Pillow 10.1 there is one size
        return ImageFont.load_default()


def _draw_map(picture, one_map):
    """Return a picture under a map."""
    from PIL import Image

    one_map = _thin_out(one_map, max(picture.size))
    values = _as_picture((np.clip(one_map, 0, 2) * 127.5).astype(np.uint8))
    values = values.resize(picture.size, Image.Resampling.BILINEAR)
    colours = Image.merge("RGB", [values.point(table) for table in _COLOURS])
    return Image.composite(colours, picture, values.point(_OPACITIES))


@cache
def _draw_legend():
    """Return what the colours of maps mean, in multiples of the threshold."""
    from PIL import Image, ImageDraw

    wide, high = _LEGEND
    legend = Image.new("RGB", (wide + 100, high + 20), _GROUND)
    ramp = np.tile(np.linspace(0, 2.2, wide, dtype=np.float32), (high, 1))
    legend.paste(_draw_map(Image.new("RGB", _LEGEND, (128, 128, 128)), ramp), (0, 0))
    draw, font = ImageDraw.Draw(legend), _load_font(11)
    for factor, text in ((0.5, "0.5"), (1, "1"), (2, "2 times the threshold")):
        at = wide * factor / 2.2 - draw.textlength(text.split()[0], font) / 2
        draw.text((at, high + 4), text, _DARK, font)
    return legend


def _draw_pair(pair):
    """Return a patch beside the nearest normal one, and a line about that."""
    from PIL import Image, ImageDraw

    font = _load_font(11)
    text = f"patch, and nearest normal: {pair['from']}"
    lines = textwrap.wrap(text, 2 * _PATCH // 5)
    drawn = Image.new("RGB", (2 * _PATCH + 8, _PATCH + 16 * len(lines)), _GROUND)
    draw = ImageDraw.Draw(drawn)
    for i, uri in enumerate((pair["patch"], pair["normal"])):
        left = i * (_PATCH + 8)
        draw.rectangle((left, 0, left + _PATCH - 1, _PATCH - 1), outline=_DARK)
        if uri:
            data = base64.b64decode(uri.partition(",")[2])
            with Image.open(io.BytesIO(data)) as patch:
                size = [round(x * _PATCH / max(patch.size)) or 1 for x in patch.size]
                drawn.paste(patch.resize(size, Image.Resampling.NEAREST), (left, 0))
    for i, line in enumerate(lines):
        draw.text((0, _PATCH + 2 + 16 * i), line, _DARK, font)
    return drawn


def _stack(picture, beside):
    """Return a sheet with a picture at the left, and others below each other."""
    from PIL import Image

    width = picture.width + 3 * _GAP + max(x.width for x in beside)
    height = sum(x.height + _GAP for x in beside)
    sheet = Image.new(
        "RGB", (width, max(picture.height + _GAP, height) + _GAP), _GROUND
    )
    sheet.paste(picture, (_GAP, _GAP))
    top = _GAP
    for one in beside:
        sheet.paste(one, (picture.width + 2 * _GAP, top))
        top += one.height + _GAP
    return sheet


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
    ratio = max(max(mask.shape) / size, 1)
    size = [round(x / ratio) or 1 for x in mask.shape[::-1]]
    return _encode(_as_picture(_scale_mask(mask, size)), "PNG", optimize=True)


def _thin_out(one_map, size):
    """Return every few pixels of a map, which is smooth, no shorter than `size`."""
    step = max(max(one_map.shape) // size, 1)
    return one_map[::step, ::step]


def _as_picture(pixels):
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(pixels))


def _encode(picture, kind, **options):
    text = base64.b64encode(_as_bytes(picture, kind, **options)).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"


def _as_bytes(picture, kind, **options):
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()
