"""What abnormal patches were compared with: the nearest normal ones."""

import numpy as np
import torch

from skpatchsvdd._scoring.matches import MATCH, set_boxes


def explain(inspector, images, pixels):
    """Find the normal patches that the patches of some pixels are compared with.

    Parameters
    ----------
    inspector : Inspector
        Which compares them.
    images : ImageStack
        The images.
    pixels : list of ndarray of int of shape (n_pixels, 2)
        For each image, rows and columns of pixels.

    Returns
    -------
    matches : list of structured ndarray of shape (n_pixels, n_scales)
        With the fields of `MATCH`: of the patches that cover a pixel, the one that is
        farthest from all normal ones, as distances count, and the nearest of these.
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
        set_boxes(matches[:, i], "", dense, i, np.array(cells))
        set_boxes(matches[:, i], "image_", dense, i, rows[:, 1])
    return matches


def _find_covering(inspector, i, pixel):
    """Return the numbers of the patches over a pixel, those looked at if there are."""
    chosen = torch.zeros(inspector.encoder.image_size, dtype=torch.bool)
    chosen[tuple(pixel)] = True
    covering = inspector.find_covering(i, chosen).flatten().nonzero()[:, 0]
    cells = torch.from_numpy(inspector.encoder.cells[i])
    inside = covering[torch.isin(covering, cells)]
    return inside if len(inside) else covering
