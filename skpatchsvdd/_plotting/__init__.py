"""Pictures of what an estimator says."""

from skpatchsvdd._plotting.axes import import_pyplot
from skpatchsvdd._plotting.maps import AnomalyMapDisplay

__all__ = ["AnomalyMapDisplay", "import_pyplot"]
