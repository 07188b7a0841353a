"""Labels of images: 1 for normal, -1 for abnormal ones, or masks of their pixels."""

from numbers import Real

import numpy as np
from sklearn.utils import check_consistent_length


def labels_from_masks(masks):
    """Label images by their masks: -1 if any pixel of the mask is not 0, else 1."""
    return np.array([-1 if np.any(mask) else 1 for mask in masks])


def check_is_list(y):
    """Raise if y has no element for each image."""
    if not hasattr(y, "__len__") or getattr(y, "ndim", 1) == 0:
        raise ValueError(
            "y must hold a label or a mask for each image, 1 for normal and -1 for "
            f"abnormal ones, got {y!r}."
        )


def find_normal(y, n_images):
    """Return the places of the images that y does not call abnormal.

    Parameters
    ----------
    y : array-like or None
        Labels 1 and -1, or masks of shape (n_images, height, width) or a list of them.
        Anything else says nothing about normal and abnormal.
    n_images : int
        How many images there are.

    Returns
    -------
    places : ndarray of int
    """
    everyone = np.arange(n_images)
    if y is None:
        return everyone
    check_is_list(y)
    if all(np.ndim(mask) == 2 for mask in y):
        y = labels_from_masks(y)
    y = np.asarray(y)
    if y.dtype == object and y.ndim == 1:  # numbers, as a table's column may hold them
        y = np.array(y.tolist()) if all(isinstance(x, Real) for x in y) else y
    if y.ndim != 1 or y.dtype.kind not in "if" or not set(np.unique(y)) <= {-1, 1}:
        return everyone
    check_consistent_length(everyone, y)
    return np.flatnonzero(y == 1)
