"""The values of options, read from text."""

import argparse
import math

# What --maps takes, each of which `maps.KINDS` knows; that module is slow to import.
KINDS = ("overlay", "npy", "png", "mask")
# What --export takes.
EXPORTS = ("coco", "label-studio", "cvat", "masks", "parquet")
# The size of images that stay as they are, and of those at full resolution.
ORIGINAL, FULL = "original", "full"


def parse_size(text):
    """Read a size: one number, or height and width."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise _refuse("must be one number, or height and width as in 192x256", text)
    return int(text) if len(parts) == 1 else tuple(map(int, parts))


def parse_working_size(text):
    """Read a size as `parse_size` does, or `ORIGINAL` or `FULL`."""
    is_named = text.lower() in (ORIGINAL, FULL)
    return text.lower() if is_named else parse_size(text)


def parse_count(text):
    """Read an integer above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise _refuse("must be a number above 0", text)
    return int(text)


def parse_port(text):
    """Read the number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise _refuse("must be a number from 0 to 65535", text)
    return int(text)


def parse_part(text):
    """Read a count, or a fraction of at most 1."""
    if text.isdecimal():
        return parse_count(text)
    return _parse_number(text, 1, "must be a number above 0, or a fraction such as 0.1")


def parse_rate(text):
    """Read a rate of at most one half."""
    return _parse_number(text, 0.5, "must be above 0 and at most 0.5, such as 0.01")


def parse_contamination(text):
    """Read "auto", or a fraction of at most one half, 0 included."""
    value = text if text == "auto" else _read_float(text)
    if value != "auto" and not 0 <= value <= 0.5:
        raise _refuse("must be auto, or from 0 to 0.5, such as 0.05", text)
    return value


def parse_score(text):
    """Read a finite score."""
    value = _read_float(text)
    if not -math.inf < value <= 0:
        raise _refuse("must be a score, 0 or less, such as -1.5", text)
    return value


def parse_positive(text):
    """Read a finite number above 0."""
    return _parse_number(text, math.inf, "must be a number above 0, such as 0.80")


def _parse_number(text, most, expected):
    """Read a finite number above 0 and at most `most`."""
    value = _read_float(text)
    if not 0 < value <= most or value == math.inf:
        raise _refuse(expected, text)
    return value


def _read_float(text):
    """Return a number, or NaN where the text is not one."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_names(known, text):
    """Read one or more of the `known` names, comma-separated, each once."""
    names = list(dict.fromkeys(text.split(",")))
    if not set(names) <= set(known):
        expected = f"must be one or more of {', '.join(known)}, comma-separated"
        raise _refuse(expected, text)
    return names


def _refuse(expected, text):
    return argparse.ArgumentTypeError(f"{expected}, got {text!r}")
