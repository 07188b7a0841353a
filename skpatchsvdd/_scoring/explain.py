"""What abnormal patches were compared with: the nearest normal ones."""

import numpy as np
import torch

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

    An array of rows and columns, (n_regions or 1, 2).
    """
    if len(regions) == 0:
        return np.array([np.unravel_index(one_map.argmax(), one_map.shape)])
    return np.transpose([regions["row"], regions["col"]])


def explain(inspector, images, pixels):
    """Find the normal patches that the patches of some pixels are compared with.

    `pixels` holds, for each image, rows and columns, (n_pixels, 2). Returns a list of
    arrays of `MATCH`, (n_pixels, n_scales): of the patches that cover a pixel, the one
    that is farthest from all normal ones, as distances count, and the nearest of these.
    Boxes are those of images as they are inspected.
    """
    pairs = zip(inspector.encode_each(images), pixels, strict=True)
    return [_explain_image(inspector, *pair) for pair in pairs]


def _explain_image(inspector, encoded, pixels):
    dense, (owner,) = inspector.encoder, encoded.owners
    matches = np.zeros((len(pixels), len(encoded.features)), dtype=MATCH)
    for i, (features,) in enumerate(encoded.features):
        covering = [_find_covering(inspector, i, pixel) for pixel in pixels]
        cells = torch.cat(covering).unique()
        measured = inspector.measure_counted(i, encoded, cells)
        # Of the patches over each pixel, the one that is farthest from normal.
        places = [torch.searchsorted(cells, own) for own in covering]
        cells = [int(cells[own[measured[own].argmax()]]) for own in places]
        nearest = inspector.indexes[i].find_nearest(
            features.flatten(0, 1)[cells], owner
        )
        matches["distance"][:, i], rows = nearest
        matches["image"][:, i] = rows[:, 0]
        _set_boxes(matches[:, i], "", dense, i, np.array(cells))
        _set_boxes(matches[:, i], "image_", dense, i, rows[:, 1])
    return matches


def _find_covering(inspector, i, pixel):
    """Return the numbers of the patches over a pixel, those looked at if there are."""
    chosen = torch.zeros(inspector.encoder.image_size, dtype=torch.bool)
    chosen[tuple(pixel)] = True
    covering = inspector.find_covering(i, chosen).flatten().nonzero()[:, 0]
    cells = torch.from_numpy(inspector.encoder.cells[i])
    inside = covering[torch.isin(covering, cells)]
    return inside if len(inside) else covering


def _set_boxes(matches, prefix, encoder, scale, cells):
    """Write the boxes of patches, given by their numbers in the grid of a scale."""
    size, stride = encoder.patch_sizes[scale], encoder.strides[scale]
    top, left = (stride * x for x in np.divmod(cells, encoder.grids[scale][1]))
    for name, value in zip(_BOX, (top, left, top + size, left + size), strict=True):
        matches[prefix + name] = value


def resize_boxes(matches, size, image_size, training_sizes):
    """Bring boxes, in place, from the size of inspection to those of the images.

    To `image_size`, in which this image came, and to the `training_sizes` in which the
    training images did: each (height, width).
    """
    others = np.array(training_sizes)[matches["image"]]  # (n_pixels, n_scales, 2)
    for prefix, other in (("", np.array(image_size)), ("image_", others)):
        for i, name in enumerate(_BOX):
            ratio = other[..., i % 2] / size[i % 2]
            matches[prefix + name] = np.rint(matches[prefix + name] * ratio)
