"""What every room uses: devices, distances, draws, progress, warnings, files, locks."""

from skpatchsvdd._utils.computing import (
    Draws,
    as_columns,
    check_device,
    check_device_name,
    compute,
    computes,
    draw_seed,
    exact_convolutions,
    expand,
    fallback_device,
    halve_squares,
    halve_without_memory,
    is_out_of_memory,
    memory_size,
    normal_mode,
    training_autocast,
    training_layout,
)
from skpatchsvdd._utils.files import (
    check_file_name,
    hold_lock,
    open_regular,
    replaced_when_whole,
)
from skpatchsvdd._utils.messages import (
    CallbackSupportMixin,
    Report,
    SuspectsFound,
    TrainingInterrupted,
    TrainingKept,
    TwinsFound,
    check_array,
    check_finite_scores,
    column_or_1d,
    open_report,
    say_time_left,
    warn,
)
from skpatchsvdd._utils.pipelines import (
    detector_of,
    inspect_by,
    maps_of,
    masks_of,
    offset_of,
)
from skpatchsvdd._utils.saving import (
    Saved,
    as_writable,
    check_mapped,
    is_model_file,
    read_tensors,
    write_tensors,
)
from skpatchsvdd._utils.threads import (
    count_threads,
    make_lock,
    map_ahead,
    map_in_threads,
    safe_after_fork,
)
