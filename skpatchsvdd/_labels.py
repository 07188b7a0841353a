"""Labels of images: 1 for normal, -1 for abnormal ones, or masks of their pixels."""

from numbers import Real

import numpy as np
from sklearn.utils import check_consistent_length

from skpatchsvdd._warnings import warn


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
        Other values say nothing about normal and abnormal.
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
    if len(y) and all(np.ndim(mask) >= 2 for mask in y):
        y = labels_from_masks(y)
    y = _check_labels(y)
    check_consistent_length(everyone, y)
    values = list(dict.fromkeys(y.tolist()))
    others = [value for value in values if value not in (-1, 1)]
    if not others:
        return np.flatnonzero(y == 1)
    if -1 in values or "-1" in values:
        raise ValueError(
            "y must hold 1 for normal and -1 for abnormal images and nothing else, "
            f"got {others[0]!r} too."
        )
    if len(values) == 2:
        warn(
            "y is ignored, and all images are taken for normal: it holds "
            f"{values[0]!r} and {values[1]!r}. Labels must be 1 for normal and -1 for "
            "abnormal images."
        )
    return everyone


def _check_labels(y):
    """Return y as an array of numbers or strings, one for each image."""
    try:
        labels = np.asarray(y)
    except ValueError:  # some labels, some masks
        labels = np.array(None)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype == object and all(isinstance(x, Real | str) for x in labels.flat):
        labels = np.array(labels.tolist())  # a table's column may be of objects
    if labels.ndim != 1 or labels.dtype == object:
        raise ValueError(
            "y must hold a label for each image, 1 for normal and -1 for abnormal "
            "ones, or a mask for each image, an array of shape (height, width)."
        )
    return labels
