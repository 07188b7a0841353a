"""The command line, a thin layer over the public interface."""

import importlib

from skpatchsvdd._cli.start import main

# What the live page shares with the other commands: imported when it is asked for, as
# `skpatchsvdd --help` has no need of it.
_SHARED = {
    "Annotations": "annotations",
    "COLUMNS": "table",
    "EXPORTS": "values",
    "FolderWatcher": "watch",
    "ListedError": "terminal",
    "RetrySchedule": "watch",
    "as_cell": "table",
    "check_exists": "models",
    "choose_offset": "models",
    "cut_batches": "batches",
    "describe_cause": "terminal",
    "encode_grey": "maps",
    "find_misfit": "files",
    "find_state": "files",
    "inspect_batch": "batches",
    "is_of_machine": "batches",
    "load_model": "models",
    "make_folder": "files",
    "make_row": "table",
    "printable": "terminal",
    "tell": "terminal",
    "try_review": "review",
}


def __getattr__(name):
    if name not in _SHARED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_SHARED[name]}"), name)
