"""What abnormal patches were compared with: the nearest normal ones."""

import numpy as np
import torch

from skpatchsvdd._scoring.inspect import encode_each
from skpatchsvdd._scoring.maps import find_covering

_BOX = ("top", "left", "bottom", "right")
# A patch and the normal patch nearest to it: the box of each, the distance between
# both, and the number of the image that the normal one is from.
MATCH = np.dtype(
    [(name, np.int64) for name in _BOX]
    + [("distance", np.float64), ("image", np.int64)]
    + [(f"image_{name}", np.int64) for name in _BOX]
)


def explain(bank, images, chosen, inspected, regions, training_sizes):
    """Find the normal patches that the highest pixels of some images come from.

    Of the `chosen` ones, by index; what is `inspected`, and the `regions`, are those of
    all, at the size of inspection; `bank` is a `DeviceBank`. Returns arrays of `MATCH`,
    of shape (n_regions or 1, n_scales), without a row for the other images: of the
    patches that cover the highest pixel of a region, or of an image that has none, the
    one that is farthest from all normal ones, as distances count, and the nearest of
    these.
    """
    matches = [np.zeros((0, len(bank.indexes)), MATCH) for _ in inspected]
    if len(chosen) == 0:
        return matches
    dense = bank.encoder
    each = encode_each(images.take(chosen), bank)
    for i, encoded in zip(chosen, each, strict=True):
        pixels = np.transpose([regions[i]["row"], regions[i]["col"]])
        if len(pixels) == 0:
            # A peak is never outside, where maps are 0.
            inside = True if dense.roi is None else dense.roi
            one_map = np.where(inside, inspected[i].map, -1)
            pixels = [np.unravel_index(one_map.argmax(), one_map.shape)]
        matches[i] = _explain_image(bank, encoded, pixels)
        resize_boxes(matches[i], dense.image_size, images.sizes[i], training_sizes)
    return matches


def _explain_image(bank, encoded, pixels):
    dense, (owner,) = bank.encoder, encoded.owners
    matches = np.zeros((len(pixels), len(encoded.features)), dtype=MATCH)
    for i, (features,) in enumerate(encoded.features):
        covering = [_find_patches(dense, i, pixel) for pixel in pixels]
        cells = torch.cat(covering).unique()
        measured = _measure_counted(bank, i, encoded, cells)
        # Of the patches over each pixel, the one that is farthest from normal.
        places = [torch.searchsorted(cells, own) for own in covering]
        cells = [int(cells[own[measured[own].argmax()]]) for own in places]
        nearest = bank.indexes[i].find_nearest(features.flatten(0, 1)[cells], owner)
        matches["distance"][:, i], rows = nearest
        matches["image"][:, i] = rows[:, 0]
        _set_boxes(matches[:, i], "", dense, i, np.array(cells))
        _set_boxes(matches[:, i], "image_", dense, i, rows[:, 1])
    return matches


def _measure_counted(bank, i, encoded, cells):
    """Return the distances of some patches of one image, at a scale, as they count.

    `cells` are the numbers of the patches, (n,), as is what is returned.
    """
    features = encoded.features[i].flatten(1, 2)
    features = features[:, cells.to(features.device)]
    distances = bank.indexes[i].query(features, encoded.owners)
    if bank.feedback is not None:
        patches = encoded._replace(features={i: features[:, None]})
        near = bank.feedback.measure(patches, [i])
        if near is not None:
            distances = bank.feedback.apply(distances[:, None], near[i])[:, 0]
    return distances[0].cpu()


def _find_patches(dense, i, pixel):
    """Return the numbers of the patches over a pixel, those looked at if there are."""
    chosen = torch.zeros(dense.image_size, dtype=torch.bool)
    chosen[tuple(pixel)] = True
    covering = find_covering(chosen, dense.patch_sizes[i], dense.strides[i])
    covering = covering.flatten().nonzero()[:, 0]
    cells = torch.from_numpy(dense.cells[i])
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
