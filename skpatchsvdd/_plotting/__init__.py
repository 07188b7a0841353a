"""Pictures of what an estimator says, and of how it was trained."""

from skpatchsvdd._plotting.axes import import_pyplot
from skpatchsvdd._plotting.losses import LossCurveDisplay
from skpatchsvdd._plotting.maps import AnomalyMapDisplay
from skpatchsvdd._plotting.scores import ScoreHistogramDisplay
