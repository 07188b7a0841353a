"""From images to features: networks, run densely, with light damped."""

from skpatchsvdd._encoding.dense import DenseSetting
from skpatchsvdd._encoding.formulas import FormulaEncoder, make_formula_encoder
from skpatchsvdd._encoding.illumination import REACH, damp_windows
from skpatchsvdd._encoding.networks import (
    grid_shape,
    rebuild_encoder,
    reset_parameters,
)
from skpatchsvdd._encoding.positions import find_units
from skpatchsvdd._encoding.registry import (
    ENCODERS,
    JointEncoder,
    is_trained,
    make_encoder,
)
from skpatchsvdd._encoding.strides import DEFAULT_STRIDES, check_strides

__all__ = [
    "DEFAULT_STRIDES",
    "ENCODERS",
    "REACH",
    "DenseSetting",
    "FormulaEncoder",
    "JointEncoder",
    "check_strides",
    "damp_windows",
    "find_units",
    "grid_shape",
    "is_trained",
    "make_encoder",
    "make_formula_encoder",
    "rebuild_encoder",
    "reset_parameters",
]
