"""Choosing models: folds and scorers."""

from skpatchsvdd._selection.folds import NormalOnlyKFold, NormalOnlyShuffleSplit
from skpatchsvdd._selection.scorers import (
    SyntheticDefectScorer,
    detection_scorer,
    pro_scorer,
    segmentation_scorer,
)
