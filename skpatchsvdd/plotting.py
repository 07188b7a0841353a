"""Pictures of maps, scores and detection, and of how an estimator was trained."""

from skpatchsvdd._plotting import (
    AnomalyMapDisplay,
    DetectionCurveDisplay,
    LossCurveDisplay,
    ScoreHistogramDisplay,
)

__all__ = [
    "AnomalyMapDisplay",
    "DetectionCurveDisplay",
    "LossCurveDisplay",
    "ScoreHistogramDisplay",
]
