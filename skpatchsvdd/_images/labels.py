"""Labels of images: 1 for normal, -1 or a name for abnormal ones, or masks."""

from collections.abc import Mapping, Set
from numbers import Real

import numpy as np

from skpatchsvdd._images.forms import check_unmasked

# Names that mean a normal image, in small or capital letters: those of folders of good
# images. Any other name is that of a kind of defects.
NORMAL_NAMES = ("good", "normal", "ok")
# What images labelled -1 show: a defect without a name.
UNNAMED_KIND = "defect"
# What regions that resemble no known defect are called.
UNKNOWN_KIND = "unknown"


def labels_from_masks(masks):
    """Label images by their masks: -1 if any pixel of the mask is not 0, else 1."""
    for i, mask in enumerate(masks):
        if np.asarray(mask).dtype.kind == "f" and not np.isfinite(mask).all():
            raise ValueError(
                f"the mask of image {i} in y contains NaN or infinity. Pass 0 for "
                "normal pixels and 1 for abnormal ones."
            )
    return np.array([-1 if np.any(mask) else 1 for mask in masks])


def check_is_list(y):
    """Raise if y has no element for each image."""
    no_order = isinstance(y, Mapping | Set)
    if no_order or not hasattr(y, "__len__") or getattr(y, "ndim", 1) == 0:
        raise ValueError(
            "y must hold a label or a mask for each image, 1 for normal and -1 for "
            f"abnormal ones, got {y!r}."
        )


def read_labels(y):
    """Return the labels in y, or those of the masks in it, as a list."""
    check_is_list(y)
    items = list(check_unmasked(y, "y"))
    if items and all(np.ndim(item) == 2 for item in items):
        return labels_from_masks(items).tolist()
    shapes = dict.fromkeys(np.shape(item) for item in items)
    if any(shapes):
        shapes = " and ".join(str(shape) for shape in shapes)
        raise ValueError(
            "y must be labels of shape (n_images,) or masks of shape (n_images, "
            f"height, width), got elements of shape {shapes}."
        )
    return [x.item() if hasattr(x, "item") else x for x in items]


def check_labels(labels):
    """Return a list of labels as an array, or raise if any is neither 1 nor -1."""
    for label in labels:
        is_number = isinstance(label, Real) and not isinstance(label, bool)
        if not is_number or label not in (-1, 1):
            raise ValueError(
                "y must hold 1 for normal and -1 for abnormal images, or a mask for "
                f"each image, got {label!r}. {_say_way_out(label)}"
            )
    return np.array(labels, dtype=int)


def _say_way_out(label):
    if not isinstance(label, Real | str) or label != label:  # nan is not itself
        return "Leave out images without a label, or pass no y if all are normal."
    way_out = (
        f"If {label!r} means normal, pass np.where(np.asarray(y) == {label!r}, 1, -1); "
        "if y says nothing about normal and abnormal, pass no y."
    )
    if label == 0 and not isinstance(label, bool):
        way_out += (
            " If y is 1 and -1, scikit-learn has made 1 and 0 of it, as "
            "cross_val_predict does for decision_function: pass it "
            "cv=skpatchsvdd.model_selection.NormalOnlyKFold(), so that fit is given "
            "normal images alone."
        )
    return way_out


def find_normal(y, n_images):
    """Return the indices of the images that y does not call abnormal."""
    kinds = find_kinds(y, n_images)
    return np.array([i for i, kind in enumerate(kinds) if kind is None], dtype=int)


def find_kinds(y, n_images):
    """Return what kind of defect each image shows, a list with None for normal ones.

    y holds 1 and -1, or names of kinds of defects and `NORMAL_NAMES`, or masks (height,
    width). If it is None, all images are normal.
    """
    if y is None:
        return [None] * n_images
    labels = read_labels(y)
    if len(labels) != n_images:
        raise ValueError(
            "X and y have inconsistent numbers of samples: y must hold a label or a "
            f"mask for each image, got {len(labels)} for {n_images} images."
        )
    if labels and all(isinstance(label, str) for label in labels):
        return [_read_kind(label) for label in labels]
    return [None if x == 1 else UNNAMED_KIND for x in check_labels(labels)]


def _read_kind(name):
    """Return a name of a kind of defects, None if it means normal."""
    name = name.strip()
    if name.lower() in NORMAL_NAMES:
        return None
    if not name or _is_number(name):
        raise ValueError(
            "y must hold names of kinds of defects, with 'good' or 'normal' for normal "
            f"images, or 1 and -1 as numbers, got {name!r}."
        )
    if name.lower() == UNKNOWN_KIND:
        raise ValueError(
            f"y must not call a kind of defects {name!r}: that is what regions which "
            f"resemble no known kind are called. Pass {UNNAMED_KIND!r}, or -1 for all."
        )
    return name


def _is_number(name):
    try:
        float(name)
    except ValueError:
        return False
    return True
