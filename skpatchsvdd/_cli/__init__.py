"""The command line, a thin layer over the public interface."""

import importlib

from skpatchsvdd._cli.start import main

# What the live page shares with other commands, imported when it is asked for.
_SHARED = {
    "annotations": {"Annotations"},
    "batches": {"cut_batches", "inspect_batch", "is_of_machine"},
    "files": {"find_misfit", "find_state", "make_folder"},
    "maps": {"encode_grey"},
    "models": {"check_exists", "choose_offset", "import_named", "load_model"},
    "review": {"try_review"},
    "table": {"COLUMNS", "as_cell", "make_row"},
    "terminal": {"ListedError", "describe_cause", "printable", "tell"},
    "values": {"EXPORTS"},
    "watch": {"FolderWatcher", "RetrySchedule"},
}


def __getattr__(name):
    for module, names in _SHARED.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
