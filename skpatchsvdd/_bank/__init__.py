"""The bank of normal features: collected, reduced, and searched."""

from skpatchsvdd._bank.collect import collect_banks
from skpatchsvdd._bank.index import make_index

__all__ = [
    "collect_banks",
    "make_index",
]
