"""What every room uses: devices, distances, draws, progress, warnings, files, locks."""

from skpatchsvdd._utils.callbacks import CallbackSupportMixin, open_report
from skpatchsvdd._utils.device import check_device, check_device_name, fallback_device
from skpatchsvdd._utils.distances import as_columns, expand, halve_squares
from skpatchsvdd._utils.files import check_file_name, replaced_when_whole
from skpatchsvdd._utils.forks import make_lock, safe_after_fork, was_forked
from skpatchsvdd._utils.locks import hold_lock
from skpatchsvdd._utils.mapped import as_writable, check_mapped, map_file
from skpatchsvdd._utils.memory import (
    computes,
    halve_without_memory,
    is_out_of_memory,
    memory_size,
)
from skpatchsvdd._utils.pipelines import detector_of, maps_of, offset_of
from skpatchsvdd._utils.precision import (
    exact_convolutions,
    training_autocast,
    training_layout,
)
from skpatchsvdd._utils.progress import Report
from skpatchsvdd._utils.random import Draws, draw_seed
from skpatchsvdd._utils.saved import Saved
from skpatchsvdd._utils.scores import check_finite_scores
from skpatchsvdd._utils.threads import count_threads, map_ahead, map_in_threads
from skpatchsvdd._utils.warnings import (
    TrainingInterrupted,
    TrainingKept,
    TwinsFound,
    check_array,
    column_or_1d,
    warn,
)

__all__ = [
    "CallbackSupportMixin",
    "Draws",
    "Report",
    "Saved",
    "TrainingInterrupted",
    "TrainingKept",
    "TwinsFound",
    "as_columns",
    "as_writable",
    "check_array",
    "check_device",
    "check_device_name",
    "check_file_name",
    "check_finite_scores",
    "check_mapped",
    "column_or_1d",
    "computes",
    "count_threads",
    "detector_of",
    "draw_seed",
    "exact_convolutions",
    "expand",
    "fallback_device",
    "halve_squares",
    "halve_without_memory",
    "hold_lock",
    "is_out_of_memory",
    "make_lock",
    "map_ahead",
    "map_file",
    "map_in_threads",
    "maps_of",
    "memory_size",
    "offset_of",
    "open_report",
    "replaced_when_whole",
    "safe_after_fork",
    "training_autocast",
    "training_layout",
    "warn",
    "was_forked",
]
