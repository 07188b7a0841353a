"""The bank of normal features: collected, reduced, and searched."""

from skpatchsvdd._bank.collect import collect_banks
from skpatchsvdd._bank.distances import as_columns, expand, halve_squares
from skpatchsvdd._bank.index import make_index

__all__ = ["as_columns", "collect_banks", "expand", "halve_squares", "make_index"]
