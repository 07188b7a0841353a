"""Patch SVDD: image anomaly detection and segmentation for scikit-learn."""

import importlib
from typing import TYPE_CHECKING

from skpatchsvdd._version import __version__

if TYPE_CHECKING:  # for tools that read this file and do not run it
    from skpatchsvdd._encoding import clear_cache
    from skpatchsvdd._parameters import Inspection, Training
    from skpatchsvdd._patch_svdd import PatchSVDD, load

__all__ = [
    "Inspection",
    "PatchSVDD",
    "Training",
    "__version__",
    "clear_cache",
    "load",
]

# Imported when they are asked for: torch takes seconds, and `skpatchsvdd --help` has no
# need of it.
_LATER = {
    "Inspection": "_parameters",
    "PatchSVDD": "_patch_svdd",
    "Training": "_parameters",
    "clear_cache": "_encoding",
    "load": "_patch_svdd",
}
_MODULES = (
    *("datasets", "drift", "encoders", "metrics", "model_selection", "plotting"),
    "report",
)


def __getattr__(name):
    if name in _LATER:
        return getattr(importlib.import_module(f"skpatchsvdd.{_LATER[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"skpatchsvdd.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_LATER, *_MODULES})
