"""Pictures of maps and scores, and of how an estimator was trained."""

from skpatchsvdd._plotting import (
    AnomalyMapDisplay,
    LossCurveDisplay,
    ScoreHistogramDisplay,
)

__all__ = [
    "AnomalyMapDisplay",
    "LossCurveDisplay",
    "ScoreHistogramDisplay",
]
