"""Masks that say where images are defective."""

import reprlib
from typing import NamedTuple

import numpy as np

from skpatchsvdd._images.forms import as_array
from skpatchsvdd._images.labels import UNNAMED_KIND, find_kinds
from skpatchsvdd._images.stack import resize_image


class Defects(NamedTuple):
    """What is said of the images of a stack.

    Attributes
    ----------
    kinds : list of str or None
        The kind of defect that each image shows, None for normal images.
    masks : list of ndarray of bool of shape (height, width) or None
        Where it is, at the size of inspection; None where nobody says so.
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
    """Read which images are defective, of what kind, and where.

    Parameters
    ----------
    y : array-like or None
        See `find_kinds`. If it holds masks, they are what `masks` would be. None calls
        those images defective that have a mask which is not empty.
    masks : array-like of shape (n_images, height, width), list or None
        A mask for each image, or None.
    images : ImageStack
        The images, at whose size of inspection masks are returned.

    Returns
    -------
    defects : Defects
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
        _check_mask(x, i, {tuple(s), size})
        for i, (x, s) in enumerate(zip(masks, images.sizes, strict=True))
    ]


def _check_mask(mask, i, sizes):
    if mask is None:
        return None
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
    share = resize_image(mask[:, :, None].astype(np.float32), size)[:, :, 0]
    return share >= min(0.5, share.max())
