"""Masks that say where images are defective, and what part of them is looked at."""

import reprlib
from typing import NamedTuple

import numpy as np

from skpatchsvdd._images.forms import as_array
from skpatchsvdd._images.labels import UNNAMED_KIND, find_kinds
from skpatchsvdd._images.stack import resize_image

# What rounding may take from a sum of weights.
_ROUNDING = 1e-5


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

    For y see `find_kinds`. If it holds masks, they are what `masks` would be; None
    calls those images defective that have a mask which is not empty.
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
        None if mask is None else _check_mask(mask, i, {tuple(own), size})
        for i, (mask, own) in enumerate(zip(masks, images.sizes, strict=True))
    ]


def _check_mask(mask, i, sizes):
    mask = as_array(mask, "masks")
    if mask.ndim != 2 or mask.dtype.kind not in "biuf":
        raise ValueError(
            f"the mask of image {i} must have the shape (height, width), with 0 at "
            f"normal pixels, got an array of shape {mask.shape} and dtype {mask.dtype}."
        )
    if mask.shape not in sizes:
        wanted = " or ".join(f"{h} x {w}" for h, w in sorted(sizes))
        raise ValueError(
            f"the mask of image {i} has {mask.shape[0]} x {mask.shape[1]} pixels, but "
            f"the image has {wanted}. Pass a mask of that size."
        )
    if not np.isfinite(mask).all():
        raise ValueError(
            f"the mask of image {i} contains NaN or infinity. Pass 0 for normal pixels "
            "and 1 for abnormal ones."
        )
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
    roi = as_array(roi, "roi")
    if roi.ndim != 2 or roi.dtype.kind not in "biuf":
        raise ValueError(
            "roi must be a mask of shape (height, width), with 0 at pixels that do not "
            f"matter, got an array of shape {roi.shape} and dtype {roi.dtype}."
        )
    if not np.isfinite(roi).all():
        raise ValueError("roi must be a mask of 0 and 1, got NaN or infinity in it.")
    size = images.image_shape[:2]
    known = {tuple(size), *map(tuple, images.sizes)}
    if roi.shape not in known:
        sizes = " or ".join(f"{h} x {w}" for h, w in sorted(known)[:3])
        raise ValueError(
            f"roi has {roi.shape[0]} x {roi.shape[1]} pixels, but images have {sizes}. "
            "Pass a mask of that size."
        )
    roi = roi != 0
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
    rows, cols = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for new, old in zip(size, roi.shape, strict=True)
    )
    return roi[np.ix_(rows, cols)]
