"""Patch SVDD: image anomaly detection and segmentation for scikit-learn."""

import importlib
from typing import TYPE_CHECKING

from skpatchsvdd._version import __version__

if TYPE_CHECKING:  # for tools that read this file and do not run it
    from skpatchsvdd._patch_svdd import PatchSVDD, load

__all__ = ["PatchSVDD", "__version__", "load"]

# Imported when they are asked for: torch takes seconds, and `skpatchsvdd --help` has no
# need of it.
_ESTIMATOR = ("PatchSVDD", "load")
_MODULES = (
    *("analysis", "datasets", "drift", "metrics", "model_selection", "plotting"),
    *("encoders", "report"),
)


def __getattr__(name):
    if name in _ESTIMATOR:
        return getattr(importlib.import_module("skpatchsvdd._patch_svdd"), name)
    if name in _MODULES:
        return importlib.import_module(f"skpatchsvdd.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_ESTIMATOR, *_MODULES})
