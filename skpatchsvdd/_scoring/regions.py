"""One inspected image: its score, its map, and its abnormal regions."""

from typing import NamedTuple

import numpy as np
from scipy import ndimage

from skpatchsvdd._scoring.maps import resize_map

# Of what the threshold is, what pixels that are taken for damage reach at least.
DAMAGED = 0.5
_BOX = ("top", "left", "bottom", "right")
REGION = np.dtype(
    [(name, np.int64) for name in (*_BOX, "area", "row", "col")]
    + [("peak", np.float64), ("mean", np.float64)]
)
_TOUCHING = np.ones((3, 3))  # pixels that touch at a corner belong together


class InspectedImage(NamedTuple):
    """One inspected image."""

    score: float  # high is normal
    map: np.ndarray  # high is abnormal, (height, width)
    logits: np.ndarray | None = None  # of damage, as the map

    def mask(self, offset):
        """Return which pixels are abnormal, none of an image with a higher score.

        Those whose logits of damage are positive, and which reach half the threshold;
        if there are none, those above it; the largest one at least.
        """
        if self.score >= offset:
            return np.zeros(self.map.shape, dtype=bool)
        mask = self.map > -offset
        if self.logits is not None:
            is_damaged = (self.logits > 0) & (self.map > DAMAGED * -offset)
            mask = is_damaged if is_damaged.any() else mask
        if not mask.any():
            mask.flat[self.map.argmax()] = True
        return mask

    def regions(self, offset):
        """Return the connected regions of the mask; see `find_regions`."""
        return find_regions(self.mask(offset), self.map)

    def split(self, offset):
        """Return a mask for each of the regions."""
        labels, _ = ndimage.label(self.mask(offset), structure=_TOUCHING)
        regions = self.regions(offset)
        return [labels == labels[x["row"], x["col"]] for x in regions]

    def resize(self, size, roi):
        """Return the same image at another size, with nothing outside of a roi."""
        parts = (x if x is None else resize_map(x, size, roi) for x in self[1:])
        return InspectedImage(self.score, *parts)


def find_regions(mask, one_map):
    """List the connected regions of a mask, the highest peak first, as `REGION`.

    The box, from `top` and `left` up to, but without, `bottom` and `right`, the number
    of pixels, row and column of the highest one, the highest and the mean value.
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
    regions["row"], regions["col"] = np.divmod(regions["row"], mask.shape[1])
    return regions[np.argsort(-regions["peak"], kind="stable")]


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

    Boxes hold all that lies in a pixel of the inspection; areas are rounded.
    """
    if tuple(size) == tuple(image_size):
        return regions
    resized = regions.copy()
    ratios = np.array(image_size) / size
    for names, rounded in ((_BOX[:2], np.floor), (_BOX[2:], np.ceil)):
        for name, ratio in zip(names, ratios, strict=True):
            # In exact terms a product may be a whole number, from which it differs.
            resized[name] = rounded(np.round(regions[name] * ratio, 6))
    for name, ratio in zip(("row", "col"), ratios, strict=True):
        resized[name] = (regions[name] + 0.5) * ratio
    resized["area"] = np.maximum(np.rint(regions["area"] * ratios.prod()), 1)
    return resized
