"""Connected regions of abnormal pixels."""

import numpy as np
from scipy import ndimage

REGION = np.dtype(
    [
        ("top", np.int64),
        ("left", np.int64),
        ("bottom", np.int64),
        ("right", np.int64),
        ("area", np.int64),
        ("row", np.int64),
        ("col", np.int64),
        ("peak", np.float64),
        ("mean", np.float64),
    ]
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
    labels, n_regions = ndimage.label(mask, structure=_TOUCHING)
    numbers = np.arange(1, n_regions + 1)
    regions = np.zeros(n_regions, dtype=REGION)
    boxes = ndimage.find_objects(labels)
    for i, (rows, cols) in enumerate(boxes):
        box = (rows.start, cols.start, rows.stop, cols.stop)
        for name, value in zip(("top", "left", "bottom", "right"), box, strict=True):
            regions[name][i] = value
    if n_regions:
        regions["area"] = ndimage.sum_labels(mask, labels, numbers)
        peaks = ndimage.maximum_position(one_map, labels, numbers)
        regions["row"], regions["col"] = np.transpose(peaks)
        regions["peak"] = ndimage.maximum(one_map, labels, numbers)
        regions["mean"] = ndimage.mean(one_map, labels, numbers)
    return regions[np.argsort(-regions["peak"], kind="stable")]
