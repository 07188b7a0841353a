"""The part of images that is looked at."""

import numpy as np


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
    roi = np.asarray(roi)
    if roi.ndim != 2 or roi.dtype.kind not in "biuf":
        raise ValueError(
            "roi must be a mask of shape (height, width), with 0 at pixels that do not "
            f"matter, got an array of shape {roi.shape} and dtype {roi.dtype}."
        )
    size = images.image_shape[:2]
    known = {tuple(size), *map(tuple, images.sizes)}
    if roi.shape not in known:
        sizes = " or ".join(f"{h} x {w}" for h, w in sorted(known)[:3])
        raise ValueError(
            f"roi has {roi.shape[0]} x {roi.shape[1]} pixels, but images have {sizes}. "
            "Pass a mask of that size."
        )
    # The nearest pixel of each, in the middle of what it stands for.
    rows, cols = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for new, old in zip(size, roi.shape, strict=True)
    )
    roi = roi[np.ix_(rows, cols)] != 0
    if not roi.any():
        raise ValueError("roi has no pixel that is not 0: nothing would be inspected.")
    return roi
