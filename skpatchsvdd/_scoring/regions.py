"""Connected regions of abnormal pixels."""

import numpy as np
from scipy import ndimage

_BOX = ("top", "left", "bottom", "right")
REGION = np.dtype(
    [(name, np.int64) for name in (*_BOX, "area", "row", "col")]
    + [("peak", np.float64), ("mean", np.float64)]
)
_TOUCHING = np.ones((3, 3))  # pixels that touch at a corner belong together


def find_regions(mask, one_map):
    """List the connected regions of a mask, the highest peak first.

    Parameters
    ----------
    mask : ndarray of bool of shape (height, width)
        True at abnormal pixels.
    one_map : ndarray of shape (height, width)
        The anomaly map.

    Returns
    -------
    regions : structured ndarray of shape (n_regions,)
        With the fields of `REGION`: the box, from `top` and `left` up to, but without,
        `bottom` and `right`, the number of pixels, row and column of the highest one,
        the highest and the mean value.
    """
    # A normal image, as almost all are: labels need not be made.
    if not mask.any():
        return np.zeros(0, dtype=REGION)
    labels, n_regions = ndimage.label(mask, structure=_TOUCHING)
    regions = np.zeros(n_regions, dtype=REGION)
    boxes = ndimage.find_objects(labels)
    corners = [(y.start, x.start, y.stop, x.stop) for y, x in boxes]
    for name, values in zip(_BOX, np.transpose(corners), strict=True):
        regions[name] = values
    pixels = np.flatnonzero(mask)
    _measure(regions, labels.ravel()[pixels] - 1, one_map.ravel()[pixels], pixels)
    width = mask.shape[1]
    regions["row"], regions["col"] = np.divmod(regions["row"], width)
    return regions[np.argsort(-regions["peak"], kind="stable")]


def split_regions(mask, regions):
    """Return a mask for each of the regions that `find_regions` has found in a mask."""
    labels, _ = ndimage.label(mask, structure=_TOUCHING)
    return [labels == labels[x["row"], x["col"]] for x in regions]


def _measure(regions, owners, values, pixels):
    """Write what follows from the values of pixels, given by the region of each.

    In `row` is the number of the highest pixel, the first of equal ones.
    """
    n_regions = len(regions)
    regions["area"] = np.bincount(owners, minlength=n_regions)
    regions["mean"] = np.bincount(owners, values, n_regions) / regions["area"]
    peaks = np.full(n_regions, -np.inf)
    np.maximum.at(peaks, owners, values)
    regions["peak"] = peaks
    highest = np.flatnonzero(values == peaks[owners])[::-1]
    regions["row"][owners[highest]] = pixels[highest]


def resize_regions(regions, size, image_size):
    """Bring regions from the size of inspection to that of the image they are of.

    Parameters
    ----------
    regions : structured ndarray of shape (n_regions,)
        See `find_regions`.
    size : tuple of (height, width)
        The size at which images are inspected.
    image_size : tuple of (height, width)
        The size in which the image came.

    Returns
    -------
    regions : structured ndarray of shape (n_regions,)
        Boxes hold all that lies in a pixel of the inspection; areas are rounded.
    """
    if tuple(size) == tuple(image_size):
        return regions
    resized = regions.copy()
    ratios = np.array(image_size) / size
    for names, round_up in ((("top", "left"), False), (("bottom", "right"), True)):
        for name, ratio in zip(names, ratios, strict=True):
            # In exact terms a product may be a whole number, from which it differs.
            value = np.round(regions[name] * ratio, 6)
            resized[name] = np.ceil(value) if round_up else np.floor(value)
    for name, ratio in zip(("row", "col"), ratios, strict=True):
        resized[name] = (regions[name] + 0.5) * ratio
    resized["area"] = np.maximum(np.rint(regions["area"] * ratios.prod()), 1)
    return resized
