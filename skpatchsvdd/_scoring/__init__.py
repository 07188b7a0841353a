"""From features to maps, regions and scores."""

from skpatchsvdd._scoring.context import FitContext, NormalImages
from skpatchsvdd._scoring.explain import explain
from skpatchsvdd._scoring.fitted import (
    FittedBank,
    build_bank,
    extend_bank,
    index_banks,
    relabel,
)
from skpatchsvdd._scoring.inspector import Encoded, Inspector
from skpatchsvdd._scoring.joining import Copy, check_copies, find_added, join_fitted
from skpatchsvdd._scoring.maps import find_covering, resize_map
from skpatchsvdd._scoring.matches import MATCH, find_peaks, resize_boxes
from skpatchsvdd._scoring.regions import find_regions, resize_regions, split_regions
from skpatchsvdd._scoring.rows import score_rows
from skpatchsvdd._scoring.sight import DAMAGED, Sight

__all__ = [
    "DAMAGED",
    "MATCH",
    "Copy",
    "Encoded",
    "FitContext",
    "FittedBank",
    "Inspector",
    "NormalImages",
    "Sight",
    "build_bank",
    "check_copies",
    "explain",
    "extend_bank",
    "find_added",
    "find_covering",
    "find_peaks",
    "find_regions",
    "index_banks",
    "join_fitted",
    "relabel",
    "resize_boxes",
    "resize_map",
    "resize_regions",
    "score_rows",
    "split_regions",
]
