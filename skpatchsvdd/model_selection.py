"""Folds that train on normal images alone; scorers for pixels, and without labels."""

from skpatchsvdd._selection import (
    NormalOnlyKFold,
    NormalOnlyShuffleSplit,
    SyntheticDefectScorer,
    detection_scorer,
    pro_scorer,
    segmentation_scorer,
)

__all__ = [
    "NormalOnlyKFold",
    "NormalOnlyShuffleSplit",
    "SyntheticDefectScorer",
    "detection_scorer",
    "pro_scorer",
    "segmentation_scorer",
]
