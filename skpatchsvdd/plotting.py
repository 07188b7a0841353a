"""Pictures of images beside their anomaly maps."""

from skpatchsvdd._plotting import AnomalyMapDisplay

__all__ = ["AnomalyMapDisplay"]
