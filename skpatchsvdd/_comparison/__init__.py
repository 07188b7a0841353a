"""A learnt comparison: where distances mean damage."""

from skpatchsvdd._comparison.compare import arrange, compare
from skpatchsvdd._comparison.network import (
    STEP,
    Comparison,
    fold_comparison,
    read_comparison,
)
