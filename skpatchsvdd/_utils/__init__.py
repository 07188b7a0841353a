"""What every room uses: devices, random draws, progress, callbacks, warnings."""

from skpatchsvdd._utils.callbacks import CallbackSupportMixin, open_report
from skpatchsvdd._utils.device import (
    as_current,
    check_device,
    count_threads,
    exact_convolutions,
    fallback_device,
    halve_without_memory,
    torch_threads,
    training_autocast,
    training_layout,
)
from skpatchsvdd._utils.files import replaced_when_whole
from skpatchsvdd._utils.pipelines import detector_of, maps_of, offset_of
from skpatchsvdd._utils.progress import Report
from skpatchsvdd._utils.random import Draws, draw_seed
from skpatchsvdd._utils.scores import check_finite_scores
from skpatchsvdd._utils.warnings import warn

__all__ = [
    "CallbackSupportMixin",
    "Draws",
    "Report",
    "as_current",
    "check_device",
    "check_finite_scores",
    "count_threads",
    "detector_of",
    "draw_seed",
    "exact_convolutions",
    "fallback_device",
    "halve_without_memory",
    "maps_of",
    "offset_of",
    "open_report",
    "replaced_when_whole",
    "torch_threads",
    "training_autocast",
    "training_layout",
    "warn",
]
