"""A learnt comparison: where distances mean damage."""

from skpatchsvdd._comparison.network import (
    STEP,
    Comparison,
    arrange,
    compare,
    fold_comparison,
    read_comparison,
)
