"""A comparison learnt on formulas: where distances mean damage, pixel by pixel."""

from skpatchsvdd._comparison.comparer import Comparer
from skpatchsvdd._comparison.inputs import arrange
from skpatchsvdd._comparison.network import (
    STEP,
    Comparison,
    fold_comparison,
    read_comparison,
)
