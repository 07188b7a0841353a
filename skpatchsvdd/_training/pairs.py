"""Pairs of patches: the paper's, cut out one by one, and those of dense training."""

import torch

from skpatchsvdd._training.crops import Sampler, add_noise
from skpatchsvdd._training.measures import DIRECTIONS

# Pairs per step and scale, about, and the fewest and the most per crop. More pairs cost
# little, since the features are computed anyway, and help where crops are few.
_N_PAIRS, _MIN_PAIRS, _MAX_PAIRS = 4096, 256, 512


def draw_pairs(n_crops, n_each, crop_size, patch_size, stride, draws):
    """Draw pairs of cells, patches a stride apart, in the feature maps of crops.

    Returns crop, row and column of both ends, (n_pairs, 3) each, and the index of their
    direction, (n_pairs,). Along each axis that the direction changes, the second lies
    3K/4 to K - 1 pixels away, rounded down to strides, or as far as the crop allows: at
    the strides of "procedural" K/2 (K = 16) or 2K/3 (24 and 48), so that both overlap.
    A crop that holds a single patch gives pairs of it with itself.
    """
    n_pairs = n_crops * n_each
    n_cells = (crop_size - patch_size) // stride + 1
    high = min(patch_size // stride, n_cells)
    low = 3 * patch_size // 4 // stride
    if low >= high:
        low = high // 2
    direction = draws.integers(0, len(DIRECTIONS), (n_pairs,))
    step = grid_steps(direction, 3) * draws.integers(
        low, max(high, low + 1), (n_pairs, 2)
    )
    room = n_cells - step.abs()
    cell = (draws.uniform(0, 1, (n_pairs, 2)) * room).long() - step.clamp(max=0)
    crop = torch.arange(n_crops, device=draws.device).repeat_interleave(n_each)
    first = torch.cat([crop[:, None], cell], dim=1)
    second = torch.cat([crop[:, None], cell + step], dim=1)
    return first, second, direction


def pairs_of_a_crop(n_crops):
    """Return how many pairs of a scale each of so many crops of a step gives."""
    return min(max(_N_PAIRS // n_crops, _MIN_PAIRS), _MAX_PAIRS)


def grid_steps(number, width):
    """Return the steps from the middle of a square to its other cells, (n, 2).

    They are numbered row by row, those of width 3 as `DIRECTIONS` are. By arithmetic,
    since a recorded step cannot copy a table to the device.
    """
    cell = number + (number >= width * width // 2).long()
    rows = torch.div(cell, width, rounding_mode="floor")
    return torch.stack([rows, cell % width], dim=1) - width // 2


def number_cells(cells, grid):
    """Numbers of cells (n, 3), counted along all maps of a grid (rows, cols)."""
    crop, row, col = cells.unbind(dim=1)
    return (crop * grid[0] + row) * grid[1] + col


class PairSampler(Sampler):
    """Draws pairs of patches; the second of position pairs may lie outside of `roi`."""

    def position_pairs(self, n_pairs, patch_size):
        """Draw neighbouring patches and the direction from the first to the second.

        Along each axis that the direction changes, the second patch lies 3K/4 to K - 1
        pixels away, clipped to the image; both get noise of their own.
        """
        index, corner = self._draw_corners(n_pairs, patch_size)
        direction = self._draws.integers(0, len(DIRECTIONS), (n_pairs,))
        nearest = 3 * patch_size // 4
        step = self._draws.integers(nearest, patch_size, (n_pairs, 2))
        moved = self._clip(corner + grid_steps(direction, 3) * step, patch_size)
        first = add_noise(self.crop(index, corner, patch_size), self._draws)
        second = add_noise(self.crop(index, moved, patch_size), self._draws)
        return first, second, direction

    def jitter_pairs(self, n_pairs, patch_size):
        """Draw patches and others shifted by up to K/32 pixels, within the image."""
        index, corner = self._draw_corners(n_pairs, patch_size)
        width = 2 * (patch_size // 32) + 1
        # One draw over all shifts but (0, 0), which is the middle of the square.
        shift = self._draws.integers(0, width * width - 1, (n_pairs,))
        moved = self._clip(corner + grid_steps(shift, width), patch_size)
        first, second = (self.crop(index, x, patch_size) for x in (corner, moved))
        return first, second

    def crop(self, index, corner, size):
        """Cut patches out of the images `index` at their top left `corner`."""
        patches = self._cut(self.images, corner, size, index)
        patches = patches - self._cut(self.center, corner, size)
        if self._roi is None:
            return patches
        return patches * self._cut(self._roi, corner, size)
