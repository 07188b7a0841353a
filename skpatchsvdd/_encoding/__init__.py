"""From images to features: networks, run densely, with light damped."""

from skpatchsvdd._encoding.base import DEFAULT_STRIDES, grid_shape, rebuild_encoder
from skpatchsvdd._encoding.cache import clear_cache, remember, remembering
from skpatchsvdd._encoding.dense import (
    DenseSetting,
    find_cells,
    keep_pictures,
    show_pictures,
)
from skpatchsvdd._encoding.dry_run import copy_frozen, run_module, weights_digest
from skpatchsvdd._encoding.illumination import REACH, damp_windows
from skpatchsvdd._encoding.modules import LARGEST_MULTIPLE, ModuleEncoder
from skpatchsvdd._encoding.networks import reset_parameters
from skpatchsvdd._encoding.positions import find_units
from skpatchsvdd._encoding.procedural import (
    Layer,
    ProceduralEncoder,
    fold_norms,
    largest_patch,
)
from skpatchsvdd._encoding.registry import (
    ENCODERS,
    JointEncoder,
    check_encoder,
    check_strides,
    join_encoders,
    make_encoder,
    make_pretrained,
)
