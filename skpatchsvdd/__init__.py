"""Patch SVDD: image anomaly detection and segmentation for scikit-learn."""

from skpatchsvdd._patch_svdd import PatchSVDD, load

__version__ = "0.1.0"
__all__ = ["PatchSVDD", "__version__", "load"]
