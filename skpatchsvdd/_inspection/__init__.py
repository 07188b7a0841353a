"""From features to maps, scores and thresholds."""

from skpatchsvdd._inspection.calibration import Calibration
from skpatchsvdd._inspection.context import FitContext, NormalImages
from skpatchsvdd._inspection.defect_patches import (
    learn_defects,
)
from skpatchsvdd._inspection.fitted import FittedBank, build_bank, extend_bank
from skpatchsvdd._inspection.groups import (
    check_groups,
    check_more_groups,
    check_n_groups,
    split_groups,
)
from skpatchsvdd._inspection.growing import (
    check_apart,
    find_news,
    grow,
    take_defective,
)
from skpatchsvdd._inspection.harmless import Harmless
from skpatchsvdd._inspection.inspector import Inspector
from skpatchsvdd._inspection.joining import (
    Copy,
    check_copies,
    find_added,
    have_news,
    join_fitted,
)
from skpatchsvdd._inspection.known_defects import DefectBank, KnownDefects
from skpatchsvdd._inspection.learnt import (
    describe_bank,
    describe_calibration,
    on_snapshot,
    set_learnt,
    take_snapshot,
)
from skpatchsvdd._inspection.likeness import warn_if_grouped
from skpatchsvdd._inspection.maps import cut_map, resize_map
from skpatchsvdd._inspection.matches import MATCH, find_peaks, resize_boxes
from skpatchsvdd._inspection.naming import name_masks
from skpatchsvdd._inspection.reducing import holds_all, reduce_bank
from skpatchsvdd._inspection.regions import (
    find_regions,
    resize_regions,
    split_regions,
)
from skpatchsvdd._inspection.rescoring import rescore_cautiously
from skpatchsvdd._inspection.threshold import (
    are_tied,
    check_scores,
    warn_of_collapse,
)

__all__ = [
    "MATCH",
    "Calibration",
    "Copy",
    "DefectBank",
    "FitContext",
    "FittedBank",
    "Harmless",
    "Inspector",
    "KnownDefects",
    "NormalImages",
    "are_tied",
    "build_bank",
    "check_apart",
    "check_copies",
    "check_groups",
    "check_more_groups",
    "check_n_groups",
    "check_scores",
    "cut_map",
    "describe_bank",
    "describe_calibration",
    "extend_bank",
    "find_added",
    "find_news",
    "find_peaks",
    "find_regions",
    "grow",
    "have_news",
    "holds_all",
    "join_fitted",
    "learn_defects",
    "name_masks",
    "on_snapshot",
    "reduce_bank",
    "rescore_cautiously",
    "resize_boxes",
    "resize_map",
    "resize_regions",
    "set_learnt",
    "split_groups",
    "split_regions",
    "take_defective",
    "take_snapshot",
    "warn_if_grouped",
    "warn_of_collapse",
]
