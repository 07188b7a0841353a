"""The scale of pixels: values that those of a type cannot mean."""

import numpy as np

from skpatchsvdd._utils import warn

# Floats beyond this are hardly on the 0..1 scale.
_LOOKS_LIKE_BYTES = 10.0
# Floats below this are on another scale than 0..1; resizing can go a little below 0.
_IS_NEGATIVE = -0.1
# Floats beyond this are pixels on no scale, and their features are noise.
_IS_NO_PIXEL = 1e6
# 16-bit integers between these, at their highest, hardly have 16 bits.
_EIGHT_BITS, _TWELVE_BITS = 255, 4095


def check_scales(images, names):
    """Raise if images are on no known scale, warn if they look as if on another."""
    found = [
        (x.dtype, *_check_scale(x, str(name)))
        for x, name in zip(images, names, strict=True)
    ]
    integers = [high for dtype, _, high in found if _has_sixteen_bits(dtype)]
    floats = [value for dtype, *pair in found if dtype.kind == "f" for value in pair]
    if integers:
        _warn_if_not_sixteen_bits(max(integers))
    if floats:
        _warn_if_not_unit(min(floats), max(floats))


def _check_scale(pixels, name):
    """Raise if pixels are on no known scale; return their lowest and highest value.

    Bytes and booleans are always on theirs, and are not looked at.
    """
    if pixels.dtype == np.uint8 or pixels.dtype.kind == "b":
        return 0, 1
    if pixels.dtype.kind != "f" and not _has_sixteen_bits(pixels.dtype):
        raise ValueError(
            f"{name} has dtype {pixels.dtype}, whose scale is unknown. Pass uint8 "
            "by .astype(np.uint8) if white is 255, uint16 if white is 65535, or divide "
            "by what is white to get floats of 0..1."
        )
    lowest, highest = float(pixels.min()), float(pixels.max())
    if not np.isfinite([lowest, highest]).all():
        kind = "NaN" if np.isnan(lowest) else "infinity"
        first = ""
        if name == "X":
            is_bad = ~np.isfinite(pixels).reshape(len(pixels), -1).all(axis=1)
            first = f", first in image {int(is_bad.argmax())}"
        raise ValueError(
            f"Input {name} contains {kind}{first}. Fill in such pixels, or leave out "
            "the images that hold them."
        )
    if pixels.dtype.kind == "f" and max(-lowest, highest) > _IS_NO_PIXEL:
        raise ValueError(
            f"{name} holds floats from {lowest:g} to {highest:g}, which are pixels on "
            "no scale. Divide them by what is white to get floats of 0..1."
        )
    return lowest, highest


def _warn_if_not_sixteen_bits(highest):
    if 0 < highest <= _EIGHT_BITS:  # what is 0 everywhere is black on any scale
        warn(
            f"X holds 16-bit integers up to {highest:g}, which look like 0..255 but "
            "are taken for black: 65535 is white. Pass X.astype(np.uint8) if white is "
            "255, or divide by what is white to get floats of 0..1.",
        )
    elif _EIGHT_BITS < highest <= _TWELVE_BITS:
        warn(
            f"X holds 16-bit integers up to {highest:g}, which are taken for "
            "nearly black: 65535 is white. Multiply 12-bit pixels by 16, 10-bit "
            "ones by 64, or divide by what is white to get floats of 0..1.",
        )


def _warn_if_not_unit(lowest, highest):
    if lowest < _IS_NEGATIVE:
        warn(
            f"X holds floats from {lowest:g} to {highest:g}, which are taken as they "
            "are, though 0 is black and 1 is white. If they were standardized, pass "
            "them as they were before; else shift and divide them to get about 0..1.",
        )
    elif highest > _EIGHT_BITS:
        warn(
            f"X holds floats up to {highest:g}, which are taken as they are. Divide "
            "them by what is white to get about 0..1.",
        )
    elif highest > _LOOKS_LIKE_BYTES:
        warn(
            f"X holds floats up to {highest:g}, which look like 0..255 but are "
            "taken as they are. Divide them by 255, or pass uint8.",
        )


def _has_sixteen_bits(dtype):
    return dtype.kind == "u" and dtype.itemsize == 2  # in any order of bytes
