"""The part of images that is looked at."""

import numpy as np

from skpatchsvdd._images.forms import as_array
from skpatchsvdd._images.stack import resize_image

# What rounding may take from a sum of weights.
_ROUNDING = 1e-5


def check_roi(roi, images):
    """Return a mask of the pixels to look at, at the size images are inspected at.

    Parameters
    ----------
    roi : array-like of shape (height, width) or None
        What is not 0 is looked at. Of the size in which images come in, or in which
        they are inspected.
    images : ImageStack
        The images.

    Returns
    -------
    roi : ndarray of bool of shape (height, width) or None
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
    if roi.shape != tuple(size):
        # Pixels that nothing outside has a part in.
        share = resize_image(roi[:, :, None].astype(np.float32), size)[:, :, 0]
        roi = share > 1 - _ROUNDING
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
