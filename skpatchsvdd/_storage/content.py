"""Whether the content of a model file fits together, and is of a size to work with."""

import math

import numpy as np

from skpatchsvdd._bank import ApproximateIndex, ExactIndex
from skpatchsvdd._calibration import Calibration
from skpatchsvdd._encoding import (
    ENCODERS,
    JointEncoder,
    ModuleEncoder,
    grid_shape,
)
from skpatchsvdd._feedback import Feedback, Harmless, KnownDefects
from skpatchsvdd._scoring import FittedBank

# Pixels of an inspected image, at most: 16,384 x 16,384, whose features fill a memory.
_MAX_PIXELS = 2**28
# Above every stride: `fit` takes one that is larger than an image, for a single patch.
_MAX_STRIDE = 2**31


def check_content(path, parameters, learnt):
    """Raise a ValueError that names a file if its content is not what `fit` makes.

    Sizes and strides say how much there is to compute: a file that was made to do harm
    would keep a machine busy, or fill its memory.

    Parameters
    ----------
    path : str
        The file.
    parameters, learnt : dict
        What `read_model` has read of it.
    """
    for name, is_right in _CHECKS.items():
        try:
            if is_right(parameters, learnt):
                continue
        except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
            raise ValueError(f"{path} cannot be loaded: {error!r}.") from error
        raise ValueError(f"{path} cannot be loaded: its {name} is not as it should be.")


def _is_encoder_right(parameters, learnt):
    encoder = learnt["encoder_"]
    known = (*ENCODERS.values(), ModuleEncoder)
    return (
        type(encoder) in (*known, JointEncoder)
        and all(type(x) in known for x in encoder.members)
        and len({x.config[0] for x in encoder.members}) == 1
        and len(set(encoder.scale_names)) == len(encoder.patch_sizes) > 0
        and learnt["patch_sizes_"] == encoder.patch_sizes
    )


def _is_size_right(parameters, learnt):
    shape, given = learnt["inspected_shape_"], parameters.get("image_size")
    n_channels, *_ = learnt["encoder_"].config
    patch_size = max(learnt["patch_sizes_"])
    *size, last = shape
    is_right = (
        len(shape) == 3
        and _are_positive(shape)
        and last == n_channels
        and min(size) >= patch_size
        and math.prod(size) <= _MAX_PIXELS
    )
    if given is not None:  # what images are resized to
        pair = [given] * 2 if isinstance(given, int) else list(given)
        is_right = is_right and pair == size
    return is_right


def _are_strides_right(parameters, learnt):
    """Whether they are strides; that they are those of the bank, its places tell."""
    strides = learnt["strides_"]
    return (
        len(strides) == len(learnt["patch_sizes_"])
        and _are_positive(strides)
        and max(strides) < _MAX_STRIDE
    )


def _is_setting_right(parameters, learnt):
    setting = learnt["_fitted"].setting
    shape, roi = tuple(learnt["inspected_shape_"]), setting.roi
    return (
        tuple(setting.image_size) == shape[:2]
        and tuple(setting.strides) == tuple(learnt["strides_"])
        and setting.center.shape in (shape, (1, 1, 1))
        and 0 <= setting.light <= 1
        and (roi is None or (roi.shape == shape[:2] and roi.dtype == bool))
    )


def _is_bank_right(parameters, learnt):
    fitted = learnt["_fitted"]
    n_known, n_scales = len(fitted.known), len(learnt["patch_sizes_"])
    lengths = [len(x) for x in (fitted.owners, fitted.sizes, fitted.files)]
    by_scale = [fitted.indexes, fitted.units]
    if fitted.variations is not None:
        by_scale.append(fitted.variations)
    return (
        isinstance(fitted, FittedBank)
        and lengths == [n_known] * 3
        and all(len(x) == n_scales for x in by_scale)
        and 0 <= fitted.n_averaged <= n_known
        and all(
            _are_places_right(index, patch_size, stride, n_known, learnt)
            for index, patch_size, stride in zip(
                fitted.indexes, learnt["patch_sizes_"], learnt["strides_"], strict=True
            )
        )
    )


def _is_feedback_right(parameters, learnt):
    """Whether what people have said fits the bank."""
    fitted = learnt["_fitted"]
    feedback, widths = fitted.feedback, [x.rows.shape[1] for x in _list_exact(fitted)]
    if feedback is None:
        return True
    defects, harmless, levels = feedback.defects, feedback.harmless, feedback.levels
    is_right = (
        isinstance(feedback, Feedback)
        and isinstance(feedback.corrected, set)
        and levels.shape == (len(fitted.known) + 1,)
        and levels.dtype == np.float64
        and np.isfinite(levels).all()
    )
    if defects is not None:
        lengths = {len(x) for x in (defects.known, defects.kinds, defects.files)}
        is_right = (
            is_right
            and isinstance(defects, KnownDefects)
            and len(lengths) == 1
            and all(isinstance(kind, str) for kind in defects.kinds)
            and len(defects.banks) == len(widths)
            and all(map(_is_bank_of_defects_right, defects.banks, widths))
            and all(x.places[:, 0].max() < min(lengths) for x in defects.banks)
        )
    if harmless is not None:
        is_right = (
            is_right
            and isinstance(harmless, Harmless)
            and _is_harmless_right(harmless, widths, learnt)
        )
    return is_right


def _is_bank_of_defects_right(bank, n_features):
    n_rows = len(bank.rows)
    return (
        _are_rows_right(bank.rows, n_features)
        and n_rows > 0
        and bank.places.shape == (n_rows, 2)
        and bank.places.min() >= 0
        and bank.limits.shape == (2, n_rows)
        and bank.holders.shape == (n_rows,)
        and bank.peaks.ndim == 1
        and len(bank.peaks) > 0
    )


def _is_harmless_right(harmless, widths, learnt):
    parts = harmless.rows, harmless.images, harmless.cells, harmless.looks
    lists = *parts, harmless.typical, harmless.grids
    if any(len(x) != len(widths) for x in lists):
        return False
    units, n_channels = learnt["_fitted"].units, learnt["inspected_shape_"][2]
    plain = [n - 2 * (unit > 0) for n, unit in zip(widths, units, strict=True)]
    n_images, scales = len(harmless.known), zip(*parts, harmless.grids, strict=True)
    return (
        all(map(_are_rows_right, harmless.rows, plain))
        and harmless.ratios.shape == (n_images,)
        and all(x > 0 for x in harmless.typical)
        and all(
            images.shape == cells.shape == (len(rows),)
            and len(looks) == len(rows)
            and _are_rows_right(looks, n_channels + 1)
            and ((images >= 0) & (images < n_images)).all()
            and ((cells >= 0) & (cells < math.prod(grid))).all()
            for rows, images, cells, looks, grid in scales
        )
    )


def _are_rows_right(rows, n_features):
    return rows.dtype == np.float32 and rows.shape[1:] == (n_features,)


def _list_exact(fitted):
    approximate = ApproximateIndex
    return [x._exact if isinstance(x, approximate) else x for x in fitted.indexes]


def _is_calibration_right(parameters, learnt):
    known = learnt["_calibration"]
    return (
        len(known) == len(learnt["_fitted"].known)
        and _are_scores_right(known)
        and (known.held_out is None or _are_scores_right(known.held_out))
        and known.source.calibrates.any()
    )


def _are_scores_right(known):
    scores = [x for x in (known.plain, known.raised) if x is not None]
    rate = known.rate
    return (
        isinstance(known, Calibration)
        and len({len(x) for x in (*scores, known.calibrates)}) == 1
        and (known.groups is None or len(known.groups) == len(known))
        and all(x.dtype == np.float64 and np.isfinite(x).all() for x in scores)
        and known.calibrates.dtype == bool
        and isinstance(known.are_given, bool)
        and (rate == "auto" or (type(rate) is float and 0 < rate <= 0.5))
        and (known.held_out is None or known.held_out.held_out is None)
    )


def _are_places_right(index, patch_size, stride, n_known, learnt):
    """Whether the rows of an index are of patches that known images have."""
    exact = index._exact if isinstance(index, ApproximateIndex) else index
    size = learnt["inspected_shape_"][:2]
    n_patches = math.prod(grid_shape(size, patch_size, stride))
    return (
        isinstance(exact, ExactIndex)
        and exact.places.min() >= 0
        and (exact.places.max(axis=0) < np.array([n_known, n_patches])).all()
    )


def _are_positive(numbers):
    return all(type(x) is int and x > 0 for x in numbers)


# In this order: each relies on those before it.
_CHECKS = {
    "encoder": _is_encoder_right,
    "size of images": _is_size_right,
    "strides": _are_strides_right,
    "setting": _is_setting_right,
    "bank": _is_bank_right,
    "feedback": _is_feedback_right,
    "calibration": _is_calibration_right,
}
