"""What every room uses: devices, distances, draws, progress, warnings, files, locks."""

from skpatchsvdd._utils.callbacks import CallbackSupportMixin, open_report
from skpatchsvdd._utils.computing import compute, computes, normal_mode
from skpatchsvdd._utils.device import check_device, check_device_name, fallback_device
from skpatchsvdd._utils.distances import as_columns, expand, halve_squares
from skpatchsvdd._utils.files import (
    check_file_name,
    hold_lock,
    open_regular,
    replaced_when_whole,
)
from skpatchsvdd._utils.mapped import as_writable, check_mapped, map_file
from skpatchsvdd._utils.memory import (
    halve_without_memory,
    is_out_of_memory,
    memory_size,
)
from skpatchsvdd._utils.pipelines import detector_of, maps_of, masks_of, offset_of
from skpatchsvdd._utils.precision import (
    exact_convolutions,
    training_autocast,
    training_layout,
)
from skpatchsvdd._utils.progress import Report, say_time_left
from skpatchsvdd._utils.random import Draws, draw_seed
from skpatchsvdd._utils.saved import Saved
from skpatchsvdd._utils.tensors import is_model_file, read_tensors, write_tensors
from skpatchsvdd._utils.threads import (
    count_threads,
    make_lock,
    map_ahead,
    map_in_threads,
    safe_after_fork,
)
from skpatchsvdd._utils.warnings import (
    TrainingInterrupted,
    TrainingKept,
    TwinsFound,
    check_array,
    check_finite_scores,
    column_or_1d,
    warn,
)
