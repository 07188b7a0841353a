"""Pictures of maps, scores and detection, and of how an estimator was trained."""

from skpatchsvdd._plotting import (
    AnomalyMapDisplay,
    DetectionCurveDisplay,
    LamSearchDisplay,
    LossCurveDisplay,
    ScoreHistogramDisplay,
)

__all__ = [
    "AnomalyMapDisplay",
    "DetectionCurveDisplay",
    "LamSearchDisplay",
    "LossCurveDisplay",
    "ScoreHistogramDisplay",
]
