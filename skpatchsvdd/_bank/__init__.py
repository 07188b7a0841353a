"""The bank of normal features: collected, reduced, and searched."""

from skpatchsvdd._bank.approximate import ApproximateIndex
from skpatchsvdd._bank.collect import collect_banks
from skpatchsvdd._bank.distances import as_columns, expand, halve_squares
from skpatchsvdd._bank.exact import ExactIndex
from skpatchsvdd._bank.index import make_index
from skpatchsvdd._bank.variation import PatchSample, Sampler, Variation

__all__ = [
    "ApproximateIndex",
    "ExactIndex",
    "PatchSample",
    "Sampler",
    "Variation",
    "as_columns",
    "collect_banks",
    "expand",
    "halve_squares",
    "make_index",
]
