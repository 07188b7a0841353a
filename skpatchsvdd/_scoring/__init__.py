"""From features to maps, regions and scores."""

from skpatchsvdd._scoring.context import FitContext, NormalImages
from skpatchsvdd._scoring.explain import MATCH, explain, find_peaks, resize_boxes
from skpatchsvdd._scoring.fitted import (
    FittedBank,
    build_bank,
    extend_bank,
    index_banks,
    relabel,
    score_rows,
)
from skpatchsvdd._scoring.inspector import Inspector
from skpatchsvdd._scoring.joining import check_copies, find_added, join_fitted
from skpatchsvdd._scoring.maps import find_covering, resize_map
from skpatchsvdd._scoring.regions import DAMAGED, resize_regions, split_regions

__all__ = [
    "DAMAGED",
    "MATCH",
    "FitContext",
    "FittedBank",
    "Inspector",
    "NormalImages",
    "build_bank",
    "check_copies",
    "explain",
    "extend_bank",
    "find_added",
    "find_covering",
    "find_peaks",
    "index_banks",
    "join_fitted",
    "relabel",
    "resize_boxes",
    "resize_map",
    "resize_regions",
    "score_rows",
    "split_regions",
]
