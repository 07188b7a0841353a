"""From images to features: networks, run densely, with light damped."""

from skpatchsvdd._encoding.base import (
    DEFAULT_STRIDES,
    grid_shape,
    rebuild_encoder,
    reset_parameters,
    weights_digest,
)
from skpatchsvdd._encoding.dense import (
    REACH,
    DenseSetting,
    damp_windows,
    find_cells,
    keep_pictures,
    show_pictures,
)
from skpatchsvdd._encoding.dry_run import copy_frozen, run_module
from skpatchsvdd._encoding.modules import LARGEST_MULTIPLE, ModuleEncoder
from skpatchsvdd._encoding.positions import choose_patches, find_units
from skpatchsvdd._encoding.procedural import (
    Layer,
    ProceduralEncoder,
    clear_cache,
    fold_norms,
    largest_patch,
    remembering,
)
from skpatchsvdd._encoding.registry import (
    ENCODERS,
    JointEncoder,
    check_encoder,
    check_strides,
    join_encoders,
    make_detail,
    make_encoder,
    make_pretrained,
)
