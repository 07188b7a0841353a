"""Labels of images: 1 for normal, -1 for abnormal ones, or masks of their pixels."""

from numbers import Real

import numpy as np
from sklearn.utils import check_consistent_length

from skpatchsvdd._utils import warn


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


def read_labels(y):
    """Return the labels in y, or those of the masks in it, as a list."""
    check_is_list(y)
    items = list(y)
    if items and all(np.ndim(item) == 2 for item in items):
        return labels_from_masks(items).tolist()
    shapes = dict.fromkeys(np.shape(item) for item in items)
    if any(shapes):
        shapes = " and ".join(str(shape) for shape in shapes)
        raise ValueError(
            "y must be labels of shape (n_images,) or masks of shape (n_images, "
            f"height, width), got elements of shape {shapes}."
        )
    return [x.item() if isinstance(x, np.generic) else x for x in items]


def check_labels(labels):
    """Return a list of labels as an array, or raise if any is neither 1 nor -1."""
    for label in labels:
        if label not in (-1, 1):
            raise ValueError(
                "y must hold 1 for normal and -1 for abnormal images, or a mask for "
                f"each image, got {label!r}."
            )
    return np.array(labels, dtype=int)


def find_normal(y, n_images):
    """Return the indices of the images that y does not call abnormal.

    Parameters
    ----------
    y : array-like or None
        Labels 1 and -1, or masks of shape (n_images, height, width) or a list of them.
        Other numbers and strings say nothing about normal and abnormal.
    n_images : int
        How many images there are.

    Returns
    -------
    indices : ndarray of int
    """
    everyone = np.arange(n_images)
    if y is None:
        return everyone
    labels = read_labels(y)
    check_consistent_length(everyone, labels)
    values = list(dict.fromkeys(labels))
    if any(x in (-1, "-1") or not isinstance(x, Real | str) for x in values):
        return np.flatnonzero(check_labels(labels) == 1)
    if len(values) == 2:
        warn(
            "y is ignored, and all images are taken for normal: it holds "
            f"{values[0]!r} and {values[1]!r}. Labels must be 1 for normal and -1 for "
            "abnormal images."
        )
    return everyone
