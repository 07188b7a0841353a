"""Pairs of patches and what losses measure of them: distances, and directions."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._utils import as_columns, expand, halve_squares

# Added to distances, so that their logarithms and gradients stay finite.
TINY = 1e-6
# The paper's classifier of L_SSL.
_HIDDEN, _SLOPE = 128, 0.1
# The eight neighbours of a 3 x 3 grid, as (down, right).
DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))
# Pairs per step and scale, about, and the fewest and the most per crop. More pairs cost
# little, since the features are computed anyway, and help where crops are few.
_N_PAIRS, _MIN_PAIRS, _MAX_PAIRS = 4096, 256, 512


def draw_pairs(n_crops, n_each, crop_size, patch_size, stride, draws):
    """Draw pairs of cells, patches a stride apart, in the feature maps of crops.

    Returns crop, row and column of both ends, (n_pairs, 3) each, and the index of their
    direction, (n_pairs,). Along each axis that the direction changes, the second lies
    3K/4 to K - 1 pixels away, rounded down to strides, so that both overlap, or a
    stride where patches lie side by side, or as far as the crop allows. A crop that
    holds a single patch gives pairs of it with itself.
    """
    n_pairs = n_crops * n_each
    n_cells = (crop_size - patch_size) // stride + 1
    high = min(max(-(-patch_size // stride), 2), n_cells)
    low = max(3 * patch_size // 4 // stride, 1)
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


def number_cells(cells, grid):
    """Numbers of cells (n, 3), counted along all maps of a grid (rows, cols)."""
    crop, row, col = cells.unbind(dim=1)
    return (crop * grid[0] + row) * grid[1] + col


def grid_steps(number, width):
    """Return the steps from the middle of a square to its other cells, (n, 2).

    They are numbered row by row, those of width 3 as `DIRECTIONS` are. By arithmetic,
    since a recorded step cannot copy a table to the device.
    """
    cell = number + (number >= width * width // 2).long()
    rows = torch.div(cell, width, rounding_mode="floor")
    return torch.stack([rows, cell % width], dim=1) - width // 2


@torch.no_grad()
def find_nearest(x, others, is_exact=False):
    """Return the index of the nearest of `others` for each row, (n,)."""
    with torch.autocast(x.device.type, enabled=False):
        # In a fifth of the time, or one that is hardly farther.
        if x.is_cuda and not is_exact:
            x, others = x.half(), others.half()
        products = expand(halve_squares(others), x, as_columns(others))
        return products.min(dim=1).indices  # `argmin` takes four times as long on CPUs


def distance(x, y, dim):
    """Euclidean distance with a finite gradient at 0."""
    return ((x - y).square().sum(dim=dim) + TINY**2).sqrt()


def look_up(table, index):
    """Rows of a table, (n, D), with a gradient that is reproducible to the last bit.

    On a CPU the gradient of an indexed read is summed by all threads in any order.
    """
    if table.device.type == "cpu":
        return F.embedding(index, table)
    return table[index]


def make_classifiers(encoder):
    """Return, for each scale, what tells directions from differences of features."""
    widths = (encoder.config[1], _HIDDEN, _HIDDEN, len(DIRECTIONS))
    classifiers = nn.ModuleList()
    for _ in encoder.patch_sizes:
        layers = []
        for n_in, n_out in itertools.pairwise(widths):
            layers += [_EmptyLinear(n_in, n_out), nn.LeakyReLU(_SLOPE)]
        classifiers.append(nn.Sequential(*layers[:-1]))
    return classifiers


class _EmptyLinear(nn.Linear):
    """A layer that leaves the global random state alone when it is made."""

    def reset_parameters(self):
        """Leave the weights as they are; `Objective.reset_parameters` follows."""
