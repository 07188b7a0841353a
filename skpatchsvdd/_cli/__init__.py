"""The command line, a thin layer over the public interface."""

import importlib

from skpatchsvdd._cli.start import main

# What the live page shares with the other commands: imported when it is asked for, as
# `skpatchsvdd --help` has no need of it.
_SHARED = {
    "FolderWatcher": "watch",
    "ListedError": "text",
    "RetrySchedule": "watch",
    "check_exists": "models",
    "cut_batches": "batches",
    "describe_cause": "text",
    "encode_grey": "maps",
    "find_misfit": "files",
    "find_state": "states",
    "inspect_batch": "batches",
    "is_of_machine": "batches",
    "load_model": "models",
    "make_folder": "files",
    "printable": "text",
    "save_model": "models",
    "tell": "text",
    "try_review": "review",
}


def __getattr__(name):
    if name not in _SHARED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_SHARED[name]}"), name)
