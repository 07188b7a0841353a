"""Checks of `fit` that look at several parameters, at images together, or at scores."""

from numbers import Integral

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skpatchsvdd._encoder import FLAT_PATCH, encoder_scales
from skpatchsvdd._images import list_digests
from skpatchsvdd._warnings import warn

DEFAULT_STRIDES = {32: 4, 64: 16, 128: 16}
# Scores are tied if they differ by no more than this share.
_TIED = 1e-6


def check_strides(strides, encoder, patch_size, image_shape):
    """Return one stride for each scale, if patches of these sizes can be cut out.

    Parameters
    ----------
    strides, encoder, patch_size : object
        Parameters of the estimator, each valid by itself.
    image_shape : tuple of (height, width, n_channels)
        Of all images.

    Returns
    -------
    strides : tuple of int
        Smallest scale first.
    """
    if encoder == "flat" and patch_size != FLAT_PATCH:
        raise ValueError(
            f"encoder='flat' is for patches of {FLAT_PATCH}, got "
            f"patch_size={patch_size}. Pass patch_size={FLAT_PATCH}, or "
            "encoder='hierarchical'."
        )
    _check_patch_fits(image_shape, patch_size, encoder)
    scales = encoder_scales(encoder, patch_size)
    if strides is None:
        return tuple(DEFAULT_STRIDES[size] for size in scales)
    given = tuple(strides)
    if len(given) != len(scales) or not all(
        isinstance(stride, Integral) and stride > 0 for stride in given
    ):
        raise ValueError(
            "strides must be positive integers, one for each of the patch sizes "
            f"{scales}, got {strides!r}."
        )
    return tuple(int(stride) for stride in given)


def _check_patch_fits(image_shape, patch_size, encoder):
    for name, length in zip(("height", "width"), image_shape, strict=False):
        if length < patch_size:
            shortest = min(image_shape[:2])
            fitting = [size for size in DEFAULT_STRIDES if size <= shortest]
            way_out = "Pass larger images, or image_size to have them resized"
            if fitting and encoder != "flat":
                way_out += f", or patch_size={fitting[-1]}"
            raise ValueError(
                f"image {name} {length} is smaller than patch_size={patch_size}. "
                f"{way_out}."
            )


def digest_images(images):
    """Digest every image, and warn where some are the same."""
    digests = list_digests(images)
    n_copies = len(digests) - len(set(digests))
    if n_copies:
        warn(
            f"X holds {n_copies} copies of other images. Copies find each other in the "
            "bank and look too normal, so that the threshold is too strict: fit to "
            "each image once.",
        )
    return digests


def check_scores(scores):
    """Raise if scores are not finite, and warn if they tell nothing."""
    if not np.isfinite(scores).all():
        raise FloatingPointError(
            "the scores of the training images are not finite. Pass a smaller "
            "learning_rate, and images of about 0..1."
        )
    if are_tied(scores):
        warn(
            "all training images score the same, so the scores tell nothing. Are the "
            "images all the same?",
            ConvergenceWarning,
        )


def are_tied(scores):
    """Whether more than two scores are all the same."""
    return len(scores) > 2 and np.ptp(scores) <= _TIED * np.abs(scores).max()


def warn_of_ties(training):
    """Say that a training has collapsed and is undone."""
    other = ", training='dense'" if training == "paper" else ""
    warn(
        "training has drawn all features to one point, and all training images scored "
        "the same. Going on with the weights before training. Pass a smaller lam or "
        f"learning_rate{other}, or early_stopping=True.",
        ConvergenceWarning,
    )
