"""What is known of images: labels, kinds of defects, masks, and what is looked at."""

import reprlib
from collections.abc import Mapping, Set
from numbers import Real
from typing import NamedTuple

import numpy as np

from skpatchsvdd._images.arrays import as_array, check_unmasked
from skpatchsvdd._images.stack import resize_image

# Names that mean a normal image, in small or capital letters: those of folders of good
# images. Any other name is that of a kind of defects.
NORMAL_NAMES = ("good", "normal", "ok")
# What images labelled -1 show: a defect without a name.
UNNAMED_KIND = "defect"
# What regions that resemble no known defect are called.
UNKNOWN_KIND = "unknown"
# What rounding may take from a sum of weights.
_ROUNDING = 1e-5


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
        return [-1 if np.any(mask) else 1 for mask in items]
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


class Defects(NamedTuple):
    """What is said of the images of a stack, one element for each of them.

    The kind of defect that an image shows, None for normal ones, and a mask of bool
    (height, width) of where it is, at the size of inspection, None if nobody says so.
    """

    kinds: list
    masks: list

    @property
    def normal(self):
        """The indices of the normal images."""
        return np.flatnonzero([kind is None for kind in self.kinds])

    @property
    def defective(self):
        """The indices of all others."""
        return np.flatnonzero([kind is not None for kind in self.kinds])


def check_defects(y, masks, images):
    """Return the `Defects` of a stack: which images are defective, how and where.

    For y see `find_kinds`. Masks in it are what `masks` would be. If it is None, images
    with a mask that is not empty are defective.
    """
    kinds = find_kinds(y, len(images))
    if masks is None:
        masks = [None] * len(images)
        if any(kinds) and np.ndim(next(iter(y))) == 2:
            masks = list(y)
    masks = _check_masks(masks, images)
    if y is None:
        has_defect = [mask is not None and mask.any() for mask in masks]
        kinds = [UNNAMED_KIND if x else None for x in has_defect]
    for i, (kind, mask) in enumerate(zip(kinds, masks, strict=True)):
        if mask is not None:
            _check_agreement(i, kind, mask)
    size = images.image_shape[:2]
    masks = [
        None if kind is None else _resize(mask, size)
        for kind, mask in zip(kinds, masks, strict=True)
    ]
    return Defects(kinds, masks)


def _check_masks(masks, images):
    """Return masks as a list of arrays of bool, or None where there is none."""
    if isinstance(masks, str | dict) or not hasattr(masks, "__len__"):
        raise ValueError(
            "masks must hold a mask of shape (height, width) or None for each image, "
            f"got {reprlib.repr(masks)}."
        )
    if len(masks) != len(images):
        raise ValueError(
            "masks must hold a mask or None for each image of X, got "
            f"{len(masks)} for {len(images)} images."
        )
    size = images.image_shape[:2]
    return [
        None
        if mask is None
        else _read_mask(mask, f"the mask of image {i}", {tuple(came_in), size})
        for i, (mask, came_in) in enumerate(zip(masks, images.sizes, strict=True))
    ]


def _read_mask(mask, name, sizes):
    """Return a mask of one of some sizes as bool, or raise."""
    mask = as_array(mask, name)
    if mask.ndim != 2 or mask.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} must have the shape (height, width) and hold 0 and 1, got an "
            f"array of shape {mask.shape} and dtype {mask.dtype}."
        )
    if mask.shape not in sizes:
        wanted = " or ".join(f"{h} x {w}" for h, w in sorted(sizes)[:3])
        raise ValueError(
            f"{name} has {mask.shape[0]} x {mask.shape[1]} pixels, but images have "
            f"{wanted}. Pass a mask of that size."
        )
    if not np.isfinite(mask).all():
        raise ValueError(f"{name} contains NaN or infinity. Pass a mask of 0 and 1.")
    return mask != 0


def _check_agreement(i, kind, mask):
    """Raise if a mask says something else than the label of its image."""
    if kind is None and mask.any():
        raise ValueError(
            f"y calls image {i} normal, but its mask has {int(mask.sum())} pixels that "
            "are not 0. Pass None as the mask of a normal image, or -1 in y."
        )
    if kind is not None and not mask.any():
        raise ValueError(
            f"the mask of image {i}, which y calls defective, is empty. Pass None "
            "instead if nobody knows where the defect is."
        )


def _resize(mask, size):
    """Bring a mask to a size: pixels at least half of which are marked, or the most."""
    if mask is None or mask.shape == tuple(size):
        return mask
    share = _resize_share(mask, size)
    return share >= min(0.5, share.max())


def _resize_share(mask, size):
    """Return what share of each pixel of another size a mask holds."""
    return resize_image(mask[:, :, None].astype(np.float32), size)[:, :, 0]


def check_roi(roi, images):
    """Return a mask of the pixels to look at, bool, at the size of inspection, or None.

    It comes in the size in which images come in, or in which they are inspected.
    """
    if roi is None:
        return None
    size = images.image_shape[:2]
    roi = _read_mask(roi, "roi", {tuple(size), *map(tuple, images.sizes)})
    if roi.shape != tuple(size):  # pixels that nothing outside has a part in
        roi = _resize_share(roi, size) > 1 - _ROUNDING
    if not roi.any():
        raise ValueError(
            "roi leaves no pixel to look at, so that nothing would be inspected. What "
            "is 0 does not matter; very thin masks are lost when images get smaller."
        )
    return roi


def enlarge_roi(roi, size):
    """Return a mask at another size, by the nearest pixel of each."""
    pairs = zip(size, roi.shape, strict=True)
    places = [((np.arange(n) + 0.5) * old / n).astype(int) for n, old in pairs]
    return roi[np.ix_(*places)]
