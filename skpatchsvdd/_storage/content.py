"""Whether the content of a model file fits together, and is of a size to work with."""

import math

import numpy as np
import torch

from skpatchsvdd._bank import ApproximateIndex, ExactIndex, Variation
from skpatchsvdd._calibration import Calibration
from skpatchsvdd._encoding import (
    ENCODERS,
    JointEncoder,
    ModuleEncoder,
    find_cells,
    grid_shape,
)
from skpatchsvdd._feedback import Feedback, KnownDefects
from skpatchsvdd._images import FULL
from skpatchsvdd._scoring import EncodedImages, FittedBank
from skpatchsvdd._screening import Suspects
from skpatchsvdd._utils import safe_after_fork

# Values of an inspected image, at most: 16,384 x 16,384 pixels of three channels.
_MAX_VALUES = 3 * 2**28
# Above every stride: `fit` takes one that is larger than an image, for a single patch.
_MAX_STRIDE = 2**31


def check_content(path, parameters, learnt):
    """Raise a ValueError that names a file if its content is not what `fit` makes.

    Sizes and strides say how much there is to compute: a file that was made to do harm
    would keep a machine busy, or fill its memory.
    """
    for name, is_right in _CHECKS.items():
        try:
            if is_right(parameters, learnt):
                continue
        except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
            raise ValueError(f"{path} cannot be loaded: {error!r}.") from error
        raise ValueError(f"{path} cannot be loaded: section {name!r} is invalid.")


def _is_encoder_right(parameters, learnt):
    encoder = learnt["encoder_"]
    single = (*ENCODERS.values(), ModuleEncoder)
    return (
        type(encoder) in (*single, JointEncoder)
        and all(type(x) in single for x in encoder.members)
        and len({x.config[0] for x in encoder.members}) == 1
        and len(set(encoder.scale_names)) == len(encoder.patch_sizes) > 0
        and learnt["patch_sizes_"] == encoder.patch_sizes
    )


def _is_size_right(parameters, learnt):
    shape, given = learnt["inspected_shape_"], parameters.get("image_size")
    n_channels, *_ = learnt["encoder_"].config
    *size, last = shape
    pair = [given] * 2 if isinstance(given, int) else given
    reduction = learnt["_fitted"].setting.reduction
    return (
        len(shape) == 3
        and _are_positive(shape)
        and last == n_channels
        and min(size) >= max(learnt["patch_sizes_"])
        and _are_positive([reduction])
        and math.prod(shape) * reduction**2 <= _MAX_VALUES
        and (given in (None, FULL) or list(pair) == size)  # what images are resized to
        and [x.config[2] for x in learnt["encoder_"].members if x.sees_detail]
        == [reduction] * (reduction > 1)
        and (given == FULL or reduction == 1)
    )


@safe_after_fork
def _are_features_finite(parameters, learnt):
    """Whether a patch has finite features: weights may be finite, but huge."""
    encoder = learnt["encoder_"]
    for member in encoder.members:
        size, n_channels = max(member.patch_sizes), member.config[0]
        patch = torch.linspace(0, 1, size**2).view(1, 1, size, size)
        with torch.inference_mode():
            features = member(patch.expand(-1, n_channels, -1, -1))
        if not torch.isfinite(features).all():
            raise ValueError("its encoder gives NaN or infinite features")
    return True


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
        and any(_are_floats(setting.center, x) for x in (shape, (1, 1, 1)))
        and 0 <= setting.light <= 1
        and (roi is None or (roi.shape == shape[:2] and roi.dtype == bool))
        and (roi is None) == (learnt["roi_"] is None)
        and np.array_equal(roi, learnt["roi_"])
        and np.array_equal(setting.center, learnt["center_"])
    )


def _is_bank_right(parameters, learnt):
    fitted = learnt["_fitted"]
    n_known, n_scales = len(fitted.known), len(learnt["patch_sizes_"])
    by_image = (fitted.known, fitted.sizes, fitted.files)
    variations = fitted.indexes if fitted.variations is None else fitted.variations
    return (
        isinstance(fitted, FittedBank)
        and all(isinstance(x, list) for x in by_image)
        and {len(x) for x in (*by_image, fitted.owners)} == {n_known}
        and all(isinstance(x, bytes) for x in fitted.known)
        and all(x is None or isinstance(x, str) for x in fitted.files)
        and all(len(x) == 2 and _are_positive(x) for x in fitted.sizes)
        and {len(fitted.indexes), len(fitted.units), len(variations)} == {n_scales}
        and 0 <= fitted.n_averaged <= n_known
        and 0 <= fitted.relative_weight <= 1
        and _is_number(fitted.comparison_weight)
        and fitted.comparison_weight >= 0
        and (fitted.pictures is not None) == (fitted.comparison_weight > 0)
        and (fitted.pictures is None or fitted.variations is not None)
        and _are_pictures_right(fitted.pictures, n_known, learnt)
        and _are_positive([fitted.score_pixels])
        and all(_is_number(unit) and unit >= 0 for unit in fitted.units)
        and _are_indices(fitted.owners, n_known)
        and type(fitted.n_folds) is int
        and fitted.n_folds >= 0
        and all(_is_index_right(i, learnt) for i in range(n_scales))
    )


def _are_pictures_right(pictures, n_images, learnt):
    """Whether there is a picture of half the size of each image, or none at all."""
    height, width = learnt["inspected_shape_"][:2]
    return pictures is None or (
        pictures.dtype == np.uint8
        and pictures.shape[0] == n_images
        and pictures.shape[1] in (1, 3)
        and pictures.shape[2:] == (-(-height // 2), -(-width // 2))
    )


def _is_index_right(i, learnt):
    """Whether the rows of a scale are of patches that known images have.

    They hold a feature and, with a unit of positions, row and column.
    """
    fitted, length = learnt["_fitted"], learnt["encoder_"].lengths[i]
    exact, n_known = _get_exact(fitted.indexes[i]), len(fitted.known)
    size, patch_size = learnt["inspected_shape_"][:2], learnt["patch_sizes_"][i]
    n_patches = math.prod(grid_shape(size, patch_size, learnt["strides_"][i]))
    n_places = 2 * (fitted.units[i] > 0)
    return (
        isinstance(exact, ExactIndex)
        and _are_indices(exact.owners, n_known)
        and _are_indices(exact.places)
        and (exact.places.max(axis=0) < np.array([n_known, n_patches])).all()
        and (length is None or exact.rows.shape[1] == length + n_places)
    )


def _are_variations_right(parameters, learnt):
    fitted = learnt["_fitted"]
    return fitted.variations is None or all(
        isinstance(x, Variation)
        and _are_floats(x.distances, x.distances.shape)
        and _are_floats(x.sample.rows, (*x.distances.shape, width))
        and x.distances.ndim == 2
        and x.distances.size > 0
        and x.distances.min() >= 0
        and all(
            labels.shape == x.distances.shape[:1]
            and _are_indices(labels, len(fitted.known))
            for labels in (x.sample.owners, x.sample.images)
        )
        and _is_number(x.width)
        and x.width > 0
        for x, width in zip(fitted.variations, _list_widths(fitted), strict=True)
    )


def _is_feedback_right(parameters, learnt):
    """Whether what people have said fits the bank."""
    fitted = learnt["_fitted"]
    feedback = fitted.feedback
    return feedback is None or (
        isinstance(feedback, Feedback)
        and isinstance(feedback.corrected, set)
        and all(isinstance(x, bytes) for x in feedback.corrected)
        and feedback.levels.shape == (len(fitted.known) + 1,)
        and feedback.levels.dtype == np.float64
        and (feedback.defects is None or _are_defects_right(feedback.defects, fitted))
    )


def _are_defects_right(defects, fitted):
    widths = _list_widths(fitted)
    lengths = {len(x) for x in (defects.known, defects.kinds, defects.files)}
    return (
        isinstance(defects, KnownDefects)
        and len(lengths) == 1
        and all(isinstance(kind, str) for kind in defects.kinds)
        and len(defects.banks) == len(widths)
        and all(
            _is_bank_of_defects_right(bank, width, len(fitted.known))
            for bank, width in zip(defects.banks, widths, strict=True)
        )
        and all(x.places[:, 0].max() < min(lengths) for x in defects.banks)
    )


def _is_bank_of_defects_right(bank, n_features, n_known):
    n_rows = len(bank.rows)
    return (
        n_rows > 0
        and _are_floats(bank.rows, (n_rows, n_features))
        and bank.places.shape == (n_rows, 2)
        and _are_indices(bank.places)
        and _are_floats(bank.limits, (2, n_rows))
        and bank.holders.shape == (n_rows,)
        and _are_indices(bank.holders)
        and bank.owners.shape == (n_known,)
        and _are_indices(bank.owners, n_known)
        and _are_floats(bank.peaks, (n_known,))
    )


def _list_widths(fitted):
    """Return how many numbers the rows of each scale's index hold."""
    return [_get_exact(index).rows.shape[1] for index in fitted.indexes]


def _get_exact(index):
    return index._exact if isinstance(index, ApproximateIndex) else index


def _is_calibration_right(parameters, learnt):
    calibration = learnt["_calibration"]
    held_out, fixed = calibration.held_out, calibration.fixed
    return (
        len(calibration) == len(learnt["_fitted"].known)
        and _are_scores_right(calibration)
        and (held_out is None or _is_held_out_right(held_out, learnt))
        and calibration.source.calibrates.any()
        and (fixed is None or (_is_number(fixed) and fixed <= 0))
        and type(learnt["offset_"]) in (int, float)  # users may set it to infinity
        and not math.isnan(learnt["offset_"])
    )


def _are_scores_right(calibration):
    rate, calibrates = calibration.rate, calibration.calibrates
    scores = [x for x in (calibration.plain, calibration.raised) if x is not None]
    parts = [*scores, calibrates, calibration.owners, calibration.groups]
    return (
        isinstance(calibration, Calibration)
        and len({len(x) for x in parts if x is not None}) == 1
        and _are_indices(calibration.owners, len(calibration))
        and all(x.dtype == np.float64 for x in scores)
        and calibrates.dtype == bool
        and (rate == "auto" or (type(rate) is float and 0 < rate <= 0.5))
        and (calibration.held_out is None or calibration.held_out.held_out is None)
    )


def _is_held_out_right(calibration, learnt):
    """Whether images that the bank does not hold have features like those there."""
    fitted, encoded = learnt["_fitted"], calibration.images
    rows, pictures = encoded.rows, encoded.pictures
    return (
        _are_scores_right(calibration)
        and isinstance(encoded, EncodedImages)
        and len(encoded.known) == len(calibration)
        and isinstance(encoded.known, list)
        and all(isinstance(x, bytes) for x in encoded.known)
        and len(rows[0]) <= len(encoded.known)
        and len(rows) == len(fitted.indexes)
        and all(
            _are_floats(x, (len(rows[0]), *shape))
            for x, shape in zip(rows, _list_shapes(learnt), strict=True)
        )
        and (pictures is None) == (fitted.pictures is None)
        and _are_pictures_right(pictures, len(rows[0]), learnt)
    )


def _list_shapes(learnt):
    """Return how many patches in roi an image has at each scale, and their length."""
    size, fitted = learnt["inspected_shape_"][:2], learnt["_fitted"]
    scales = zip(learnt["patch_sizes_"], learnt["strides_"], strict=True)
    cells = [find_cells(fitted.setting.roi, grid_shape(size, *x), *x) for x in scales]
    return zip(map(len, cells), _list_widths(fitted), strict=True)


def _are_positive(numbers):
    return all(type(x) is int and x > 0 for x in numbers)


def _is_number(x):
    return type(x) in (int, float) and math.isfinite(x)


def _are_indices(array, end=np.inf):
    """Whether an array holds whole numbers from 0 up to, but without, an end."""
    if array.dtype.kind not in "iu":
        return False
    return array.size == 0 or 0 <= array.min() <= array.max() < end


def _are_floats(array, shape):
    return array.dtype == np.float32 and array.shape == shape


def _are_suspects_right(parameters, learnt):
    suspects = learnt["suspects_"]
    n, p_values = len(suspects.indices), suspects.p_values
    return (
        isinstance(suspects, Suspects)
        and suspects.indices.dtype.kind == "i"
        and (suspects.indices >= 0).all()
        and p_values.shape == suspects.is_set_aside.shape == (n,)
        and ((p_values >= 0) & (p_values <= 1)).all()
        and suspects.is_set_aside.dtype == bool
        and len(suspects.files) == n
        and all(x is None or isinstance(x, str) for x in suspects.files)
    )


# In this order: each relies on those before it.
_CHECKS = {
    "suspects": _are_suspects_right,
    "encoder": _is_encoder_right,
    "size of images": _is_size_right,
    "weights": _are_features_finite,
    "strides": _are_strides_right,
    "setting": _is_setting_right,
    "bank": _is_bank_right,
    "local normal variation": _are_variations_right,
    "feedback": _is_feedback_right,
    "calibration": _is_calibration_right,
}
