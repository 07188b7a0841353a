"""What abnormal patches were compared with."""

import numpy as np

_BOX = ("top", "left", "bottom", "right")
# A patch and the normal patch nearest to it: the box of each, the distance between
# both, and the number of the image that the normal one is from.
MATCH = np.dtype(
    [(name, np.int64) for name in _BOX]
    + [("distance", np.float64), ("image", np.int64)]
    + [(f"image_{name}", np.int64) for name in _BOX]
)


def find_peaks(regions, one_map):
    """Return the highest pixels of the regions of a map, or of the map without any.

    Parameters
    ----------
    regions : structured ndarray of shape (n_regions,)
        See `find_regions`.
    one_map : ndarray of shape (height, width)
        The anomaly map.

    Returns
    -------
    pixels : ndarray of int of shape (n_regions or 1, 2)
    """
    if len(regions) == 0:
        return np.array([np.unravel_index(one_map.argmax(), one_map.shape)])
    return np.transpose([regions["row"], regions["col"]])


def set_boxes(matches, prefix, encoder, scale, cells):
    """Write the boxes of patches, given by their numbers in the grid of a scale."""
    size, stride = encoder.patch_sizes[scale], encoder.strides[scale]
    top, left = (stride * x for x in np.divmod(cells, encoder.grids[scale][1]))
    for name, value in zip(_BOX, (top, left, top + size, left + size), strict=True):
        matches[prefix + name] = value


def resize_boxes(matches, size, image_size, training_sizes):
    """Bring boxes, in place, from the size of inspection to those of the images.

    Parameters
    ----------
    matches : structured ndarray of shape (n_pixels, n_scales)
        With the fields of `MATCH`.
    size : tuple of (height, width)
        The size at which images are inspected.
    image_size : tuple of (height, width)
        The size in which this image came.
    training_sizes : list of (height, width)
        Those in which the training images did.
    """
    others = np.array(training_sizes)[matches["image"]]  # (n_pixels, n_scales, 2)
    for prefix, other in (("", np.array(image_size)), ("image_", others)):
        for i, name in enumerate(_BOX):
            ratio = other[..., i % 2] / size[i % 2]
            matches[prefix + name] = np.rint(matches[prefix + name] * ratio)
