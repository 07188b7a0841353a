"""What there is to see in an image: its score, its map, and where it is damaged."""

from typing import NamedTuple

import numpy as np

from skpatchsvdd._scoring.maps import resize_map
from skpatchsvdd._scoring.regions import find_regions

# Of what the threshold is, what pixels that are taken for damage reach at least.
DAMAGED = 0.5


class Sight(NamedTuple):
    """One inspected image.

    Attributes
    ----------
    score : float
        High is normal.
    map : ndarray of shape (height, width)
        High is abnormal.
    logits : ndarray of shape (height, width) or None
        How sure the comparison is of damage, if there is one.
    """

    score: float
    map: np.ndarray
    logits: np.ndarray | None = None

    def mask(self, offset):
        """Return which pixels are abnormal, none of an image with a higher score.

        Those of which the comparison is more sure than not that they are damaged, and
        which reach half the threshold; if there are none, those above it; the largest
        one at least.
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

    def resize(self, size, roi):
        """Return the same image at another size, with nothing outside of a roi."""
        parts = (x if x is None else resize_map(x, size, roi) for x in self[1:])
        return Sight(self.score, *parts)
