"""The lines of a station, as its file or --line names them."""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from skpatchsvdd._serve.sources import WORDS, find_kind

_NAME = r"[A-Za-z0-9_-]{1,40}"


def _is_text(x):
    return isinstance(x, str) and bool(x.strip())


def _is_number(x, most=sys.float_info.max, kind=int | float):
    return isinstance(x, kind) and not isinstance(x, bool) and 0 < x <= most


def _is_command(x):
    is_list = isinstance(x, list) and x and all(isinstance(y, str) for y in x)
    return is_list and shutil.which(x[0]) is not None


def is_address(x):
    """Whether alarms can be posted to it."""
    found = urlsplit(x) if _is_text(x) else urlsplit("")
    return found.scheme in ("http", "https") and bool(found.hostname)


_COUNT = lambda x: _is_number(x, kind=int), "a whole number above 0"
# What a line can have: whether a value is one, and what it must be.
_KEYS = {
    "model": (_is_text, "the name of a model file"),
    "source": (
        lambda x: _is_text(x) or (type(x) is int and x >= 0),
        "a folder, a video, or the index or address of a camera",
    ),
    "when": (
        lambda x: x in WORDS or _is_number(x),
        f"{', '.join(WORDS)}, or a number of seconds above 0",
    ),
    "keep_good": _COUNT,
    "false_alarm_rate": (
        lambda x: _is_number(x, 0.5),
        "a number above 0 and at most 0.5, such as 0.01",
    ),
    "threshold": (_is_number, "a number above 0, which the model's is multiplied by"),
    "output": (_is_text, "the name of a folder"),
    "on_alarm": (
        _is_command,
        "a list of a program, which there is, and its arguments, all texts",
    ),
    "webhook": (is_address, "an address as in http://host/path"),
    "keep": _COUNT,
    "queue": _COUNT,
    "device": (_is_text, "auto, cpu, cuda, ..."),
    "encoder": (_is_text, "what --encoder takes"),
}
_PATHS = "model", "output"
# Seconds between two frames that are inspected, and good ones that stay as files.
_DEFAULTS = {"when": 1, "keep_good": 100}


def is_station(args):
    """Whether options of the command serve name several lines."""
    return bool(args.line) or Path(args.model or "").suffix.lower() == ".toml"


def read_lines(args):
    """Return the options of each line, by its name; an error names line and key."""
    if args.line:
        where, folder, tables = "--line", Path(), _parse_lines(args.line)
    else:
        where, folder = args.model, Path(args.model).parent
        tables = _read_file(args.model)
    lines = {}
    for name, table in tables.items():
        _check_line(where, name, table)
        values = dict.fromkeys(_KEYS) | _DEFAULTS | table
        for key in _PATHS:
            if values[key] is not None:
                values[key] = str(folder / values[key])
        values["source"] = _find_source(values["source"], folder)
        given = {x: y for x, y in values.items() if y is not None or x not in args}
        lines[name] = argparse.Namespace(**vars(args) | given | {"line": name})
    _check_apart(where, lines)
    return lines


def _find_source(source, folder):
    """Return a source as it is from here: paths are relative to the file."""
    if source is None:
        return None
    is_path = find_kind(str(source)) in ("folder", "video")
    return str(folder / source) if is_path else str(source)


def _read_file(path):
    try:
        import tomllib
    except ImportError as error:
        raise ValueError(
            f"{path}: files of stations need Python 3.11 or later. Install it, or name "
            "each line by --line NAME=MODEL:SOURCE."
        ) from error
    try:
        content = tomllib.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a file of TOML: {error}.") from error
    if others := sorted(content.keys() - {"lines"}):
        raise ValueError(
            f"{path}: {others[0]!r} stands outside of all lines. Each line is a table, "
            "as in [lines.front]."
        )
    lines = content.get("lines")
    if not isinstance(lines, dict) or not lines:
        raise ValueError(
            f"{path} names no line. Write a table for each, as in [lines.front], with "
            "a model and a source."
        )
    return lines


def _parse_lines(texts):
    lines = {}
    for text in texts:
        name, _, rest = text.partition("=")
        model, _, source = rest.partition(":")
        if not model:
            raise ValueError(
                "--line must be NAME=MODEL:SOURCE, as in front=front.model:new/, and "
                "one has no model."
            )
        if name in lines:
            raise ValueError(f"--line: there are two lines of the name {name!r}.")
        lines[name] = {"model": model} | ({"source": source} if source else {})
    return lines


def _check_line(where, name, table):
    """Raise if a line has no proper name, or a key is wrong; no value is shown."""
    if not re.fullmatch(_NAME, name):
        raise ValueError(
            f"{where}, line {name!r}: names have up to 40 letters, digits, - and _."
        )
    if not isinstance(table, dict):
        raise ValueError(f"{where}, line {name!r} must be a table, [lines.{name}].")
    for key, value in table.items():
        if key not in _KEYS:
            known = ", ".join(_KEYS)
            raise ValueError(
                f"{where}, line {name!r}: there is no key {key!r}. Keys are {known}."
            )
        is_right, expected = _KEYS[key]
        if not is_right(value):
            raise ValueError(f"{where}, line {name!r}: {key} must be {expected}.")
    if "model" not in table:
        raise ValueError(f"{where}, line {name!r}: model is missing.")
    if {"threshold", "false_alarm_rate"} <= table.keys():
        raise ValueError(
            f"{where}, line {name!r}: threshold and false_alarm_rate exclude each "
            "other. Leave one out."
        )


def _check_apart(where, lines):
    """Raise if two lines share what only one can write to."""
    for key, advice in (
        ("model", "each learns by itself: give it a copy of the file"),
        ("output", "give it another folder"),
    ):
        taken = {}
        for name, args in lines.items():
            value = getattr(args, key)
            other = value and taken.setdefault(os.path.realpath(value), name)
            if other not in (None, name):
                raise ValueError(
                    f"{where}, line {name!r}: {key} is that of line {other!r}; "
                    f"{advice}."
                )
