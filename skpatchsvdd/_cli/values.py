"""The values of options, read from text."""

import argparse
import math

# What --maps takes, each of which `maps.KINDS` knows; that module is slow to import.
KINDS = ("overlay", "npy", "png", "mask")
# The size of images that stay as they are.
ORIGINAL = "original"


def parse_size(text):
    """Read a size: one number, or height and width."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise _refuse("must be one number, or height and width as in 192x256", text)
    return int(text) if len(parts) == 1 else tuple(map(int, parts))


def parse_working_size(text):
    """Read a size as `parse_size` does, or `ORIGINAL`."""
    return ORIGINAL if text.lower() == ORIGINAL else parse_size(text)


def parse_count(text):
    """Read a number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise _refuse("must be a number above 0", text)
    return int(text)


def parse_port(text):
    """Read the number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise _refuse("must be a number from 0 to 65535", text)
    return int(text)


def parse_megabytes(text):
    """Read a size above 0."""
    value = _parse_number(text)
    if not 0 < value < math.inf:
        raise _refuse("must be above 0, such as 32", text)
    return value


def parse_part(text):
    """Read a number above 0, or a fraction of at most 1."""
    if text.isdecimal():
        return parse_count(text)
    value = _parse_number(text)
    if not 0 < value <= 1:
        raise _refuse("must be a number above 0, or a fraction such as 0.1", text)
    return value


def parse_fraction(text):
    """Read a fraction of at most one half."""
    value = _parse_number(text)
    if not 0 < value <= 0.5:
        raise _refuse("must be above 0 and at most 0.5, such as 0.01", text)
    return value


def parse_factor(text):
    """Read a finite number above 0."""
    value = _parse_number(text)
    if not 0 < value < math.inf:
        expected = "must be above 0, such as 0.80, which alone is 0.80 x the model's"
        raise _refuse(f"{expected} threshold", text)
    return value


def _parse_number(text):
    try:
        return float(text)
    except ValueError:
        raise _refuse("must be a number", text) from None


def parse_kinds(text):
    """Read what to write of maps, one or more of `KINDS`."""
    kinds = list(dict.fromkeys(text.split(",")))
    if not set(kinds) <= set(KINDS):
        known = ", ".join(KINDS)
        raise _refuse(f"must be one or more of {known}, comma-separated", text)
    return kinds


def _refuse(expected, text):
    return argparse.ArgumentTypeError(f"{expected}, got {text!r}")
