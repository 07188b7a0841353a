"""Known defects as fillings of synthetic ones, cut out of defective images."""

from dataclasses import replace

import numpy as np
import torch

from skpatchsvdd._images import pixels_to_float

# The fraction of synthetic defects that are filled with a known one: the others teach
# what nobody has seen yet.
_KNOWN = 0.5
# Pixels of each mask that fillings are cut around: as many for large masks as for
# small ones, so that no known defect is seen more often than others.
_N_PLACES = 1024


def take_masked(defective, roi=None):
    """Return those `DefectiveImages` of which it is known where they are defective.

    What a `roi` hides is no part of a mask. None if there are none.
    """
    if defective is None:
        return None
    masks = defective.masks
    if roi is not None:
        masks = [None if mask is None else mask & roi for mask in masks]
        defective = replace(defective, stack=defective.stack.hide_outside(roi))
    has_mask = [mask is not None and mask.any() for mask in masks]
    masked = replace(defective, masks=masks).take(np.flatnonzero(has_mask))
    return masked if len(masked) > 0 else None


def draw_places(masks, rng):
    """Draw pixels of each mask, as many of each, (n_masks, n_places, 2)."""
    pixels = [np.argwhere(mask) for mask in masks]
    return np.stack([x[rng.randint(len(x), size=_N_PLACES)] for x in pixels])


class Fillings:
    """Fills synthetic defects with known ones.

    `pixels` (n_images, height, width, n_channels) are bytes, or floats on the 0..1
    scale; `places` (n_images, n_places, 2) rows and columns of defective ones.
    """

    def __init__(self, pixels, places):
        self._pixels = pixels
        self._places = places

    def replace_some(self, fillings, centers, draws):
        """Replace half of the fillings (n, n_channels, height, width) by known defects.

        These come to the middle of the synthetic ones, `centers` (n, 2).
        """
        is_known = draws.uniform(0, 1, (len(fillings), 1, 1, 1)) < _KNOWN
        return torch.where(is_known, self.cut(fillings.shape, centers, draws), fillings)

    def cut(self, shape, centers, draws):
        """Cut known defects out, with what is around them, flipped at random.

        A random defective pixel of each comes to its centre, (n, 2).
        """
        n, _, *lengths = shape
        n_images, n_places, _ = self._places.shape
        image = draws.integers(0, n_images, (n,))
        place = self._places[image, draws.integers(0, n_places, (n,))]
        direction = 2 * draws.integers(0, 2, (n, 2)) - 1
        parts = (place.T, centers.long().T, direction.T, lengths)
        axes = zip(*parts, self._pixels.shape[1:3], strict=True)
        rows, cols = (_trace(*axis) for axis in axes)
        pixels = self._pixels[image[:, None, None], rows[:, :, None], cols[:, None]]
        return pixels_to_float(pixels).permute(0, 3, 1, 2)


def _trace(place, center, direction, length, source_length):
    """Say where rows or columns come from, (n, length); images go on as mirrored."""
    away = torch.arange(length, device=place.device) - center[:, None]
    along = (place[:, None] + direction[:, None] * away) % (2 * source_length)
    return torch.minimum(along, 2 * source_length - 1 - along)
