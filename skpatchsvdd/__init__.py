"""Patch SVDD: image anomaly detection and segmentation for scikit-learn."""

from skpatchsvdd._patch_svdd import PatchSVDD, load
from skpatchsvdd._version import __version__

__all__ = ["PatchSVDD", "__version__", "load"]
