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
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 0.5:
        raise _refuse("must be auto, or from 0 to 0.5, such as 0.05", text)
    return value


def parse_score(text):
    """Read a finite score."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not -math.inf < value <= 0:
        raise _refuse("must be a score, 0 or less, such as -1.5", text)
    return value


def parse_positive(text):
    """Read a finite number above 0."""
    return _parse_number(text, math.inf, "must be above 0, such as 0.80")


def _parse_number(text, most, expected):
    """Read a finite number above 0 and at most `most`."""
    try:
        value = float(text)
    except ValueError:
        raise _refuse("must be a number", text) from None
    if not 0 < value <= most or value == math.inf:
        raise _refuse(expected, text)
    return value


def parse_kinds(text):
    """Read what to write of maps, one or more of `KINDS`."""
    return _parse_names(text, KINDS)


def parse_exports(text):
    """Read what to write for other programs, one or more of `EXPORTS`."""
    return _parse_names(text, EXPORTS)


def _parse_names(text, known):
    names = list(dict.fromkeys(text.split(",")))
    if not set(names) <= set(known):
        expected = f"must be one or more of {', '.join(known)}, comma-separated"
        raise _refuse(expected, text)
    return names


def _refuse(expected, text):
    return argparse.ArgumentTypeError(f"{expected}, got {text!r}")
