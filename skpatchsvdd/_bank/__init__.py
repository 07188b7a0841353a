"""The bank of normal features: collected, reduced, and searched."""

from skpatchsvdd._bank.approximate import ApproximateIndex
from skpatchsvdd._bank.clusters import ClusterBounds, Clusters
from skpatchsvdd._bank.collect import (
    Coreset,
    collect_banks,
    count_folds,
    join_banks,
    make_index,
    rows_to_keep,
    take_cells,
)
from skpatchsvdd._bank.exact import Bank, ExactIndex, as_tensor, find_needed
from skpatchsvdd._bank.variation import PatchSample, Sampler, Variation
