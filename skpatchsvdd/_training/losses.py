"""Pairs of patches, and the losses of dense training on them."""

import functools
import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._encoding import grid_shape
from skpatchsvdd._gpu import run_concurrently
from skpatchsvdd._training.loop import Objective
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
# Standard deviation of features that the scale term aims at.
_FEATURE_STD = 0.5
# A patch counts as damaged if more than the first fraction of its pixels is, ten of
# 32 x 32, and with its full weight from the second on.
DAMAGED, _FULLY_DAMAGED = 0.01, 0.03
# In units of the largest feature: farther from all than any two of them are.
_FAR = 4.0
# Plain patches of a batch that a damaged one is compared with, besides its own.
_N_COMPARED = 4096


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


def distance(x, y):
    """Euclidean distance along axis 1, with a finite gradient at 0."""
    return ((x - y).square().sum(dim=1) + TINY**2).sqrt()


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


class Pairs(NamedTuple):
    """Pairs of patches of one scale, and what is known of them.

    `cells` says where, in the maps of both views, those of all first ones first, the
    features of a patch, of its second view and of its neighbour in the second view are.
    """

    cells: torch.Tensor  # (n, 3)
    direction: torch.Tensor  # (n,), in which of eight the neighbour lies
    damaged: torch.Tensor  # (n,), the fraction of pixels in the second view
    # 1 where the patch, and its neighbour, hold a pixel to look at; None counts all.
    is_seen: torch.Tensor | None  # (n,)
    is_other_seen: torch.Tensor | None  # (n,)


class DenseLoss(Objective):
    r"""The paper's two tasks and a third, on all patches of crops, summed over scales.

    .. math:: L = L_{SSL} + \lambda L_{SVDD'} + \mu L_{damage} + 0.1 L_{scale}

    :math:`L_{SSL}` is the paper's. :math:`L_{SVDD'}` and :math:`L_{damage}` are ratios
    of distances and do not change when all features shrink. Each patch :math:`p` is
    seen twice. The second view :math:`p'` has another light, half of the time it is
    shifted by a pixel or two, and some of its patches have a synthetic defect:
    :math:`D` is the set of these, weighted by how much of them is damaged, :math:`I`
    that of patches without any. With a random patch :math:`q` and all first views
    :math:`B` of the batch,

    .. math::

        L_{SVDD'} = \underset{I}{\operatorname{mean}} \log \left(
            1 + \frac{\| f(p) - f(p') \|}{\| f(p) - f(q) \|} \right), \quad
        L_{damage} = \underset{D}{\operatorname{mean}} \log \left(
            1 + \frac{r}{\min_{b \in B} \| f(p') - f(b) \|} \right), \quad
        r = \underset{I}{\operatorname{mean}} \| f(p) - f(p') \|.

    The denominator of the second is what inspection measures, the distance to the
    nearest normal patch.

    With a weight of 0, :math:`L_{damage}` is not computed, nor among the `weights`.

    :math:`L_{scale}` is the squared difference between the mean of
    :math:`\log \| f(p) - f(q) \|` and what it is for features of deviation 0.5: the
    tanh at the end neither saturates nor fades. No other term depends on their scale.
    """

    max_gradient = 1.0  # a ratio of distances is steep where the lower one is near 0
    decay = 0.5  # without it, the encoder learns training images by heart
    scale_weight = 0.1  # enough to keep the tanh from saturating

    def __init__(self, encoder, lam, damage_weight, n_crops):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.strides = (encoder.dense_stride,) * len(self.sizes)
        self.n_crops = n_crops
        terms = {
            "position": 1.0,
            "svdd": lam,
            "damage": damage_weight,
            "scale": self.scale_weight,
        }
        # Those to compute.
        self.terms = [x for x, weight in terms.items() if weight > 0 or x == "svdd"]
        self.weights = {f"{x}_{k}": terms[x] for k in self.sizes for x in self.terms}
        self.classifiers = make_classifiers(encoder)
        n_features = encoder.config[1]
        self.log_distance = math.log(_FEATURE_STD * math.sqrt(2 * n_features))

    def draw(self, sampler, n_steps=1):
        """Draw both views of crops, and pairs of patches of each scale."""
        n_crops, n_each = n_steps * self.n_crops, pairs_of_a_crop(self.n_crops)
        size, draws = sampler.crop_size, sampler.draws
        scales = list(zip(self.sizes, self.strides, strict=True))
        drawn = [draw_pairs(n_crops, n_each, size, *scale, draws) for scale in scales]
        crops = sampler.crops(n_crops, "damage" in self.terms)
        pairs = []
        for scale, ends in zip(scales, drawn, strict=True):
            grid = grid_shape((size, size), *scale)
            damaged = damaged_fraction(crops.is_damaged, *scale).flatten()
            seen = seen_cells(crops.is_seen, *scale)
            # Cells of the maps of one step: those of other steps will not be there.
            n_cells = self.n_crops * math.prod(grid)
            pairs.append(describe_pairs(*ends, grid, damaged, seen, n_cells))
        return crops.first, crops.second, pairs

    def forward(self, encoder, batch):
        """Return the loss terms."""
        first, second, pairs = batch
        pairs = [Pairs(*x) for x in pairs]
        maps = encoder.encode_images(torch.cat([first, second]), self.strides)
        tables = [x.permute(0, 2, 3, 1).float().flatten(0, 2) for x in maps]
        trios = [look_up(x, y.cells.T) for x, y in zip(tables, pairs, strict=True)]
        return self._measure_all(trios, pairs)

    def _measure_all(self, trios, pairs):
        """Return the loss terms of all scales."""
        calls = [
            functools.partial(self._measure, *scale)
            for scale in zip(trios, pairs, self.classifiers, strict=True)
        ]
        losses = run_concurrently(calls, trios[0].device)
        return self._name(itertools.chain(*losses))

    def _measure(self, trio, pairs, classifier):
        """Return the loss terms of one scale that count.

        `trio` are the features (3, n, D) of patches, of their second views and of their
        neighbours.
        """
        _, direction, damaged, is_seen, is_other_seen = pairs
        x, seen_again, neighbour = trio.unbind()
        logits = classifier(x - neighbour)
        position = F.cross_entropy(logits.float(), direction, reduction="none")
        found = {"position": _mean(position, is_seen, is_other_seen)}
        found["svdd"], found["scale"] = self._contrast(x, seen_again, damaged, is_seen)
        if "damage" in self.terms:
            is_exact = self.precision == "float32"
            found["damage"] = damage_loss(x, seen_again, damaged, is_seen, is_exact)
        return [found[name] for name in self.terms]

    def _contrast(self, x, seen_again, damaged, is_seen=None):
        """Return the SVDD' and the scale term."""
        # Far enough in the batch to be another crop, where there are several.
        far = len(x) // 2
        apart = distance(x, x.roll(far, dims=0)) + TINY
        svdd = torch.log1p(distance(x, seen_again) / apart)
        is_far_seen = None if is_seen is None else is_seen.roll(far)
        scale = _mean(apart.log(), is_seen, is_far_seen) - self.log_distance
        is_intact = (damaged == 0).float()
        return _mean(svdd, is_intact, is_seen, is_far_seen), scale.square()


def describe_pairs(first, second, direction, grid, damaged, seen, n_cells):
    """Say what is known of pairs of cells of a grid, of the tables of all cells.

    `n_cells` is how many the maps of one step have, in each view.
    """
    here, there = number_cells(first, grid), number_cells(second, grid)
    is_seen, is_other_seen = (None if seen is None else seen[x] for x in (here, there))
    cell, neighbour = here % n_cells, there % n_cells
    cells = torch.stack([cell, cell + n_cells, neighbour + n_cells], dim=1)
    return Pairs(cells, direction, damaged[here], is_seen, is_other_seen)


def damage_loss(plain, seen_again, damaged, is_seen=None, is_exact=False):
    """How near damaged patches lie to a plain one, relative to how far others move.

    Of the features (n, D) of the same patches in both views; `damaged` (n,) is the
    fraction of their pixels. `is_exact` finds the nearest in float32 on a GPU, too.
    """
    weight = (damaged / _FULLY_DAMAGED).clamp(max=1) * (damaged > DAMAGED)
    every = math.ceil(len(plain) / _N_COMPARED)
    others = plain[::every]
    if is_seen is not None:  # what does not count is far from everything
        far = _FAR * (1 + others.detach().abs().amax())
        others = torch.where(is_seen[::every, None] == 0, far, others)
    between = distance(plain, seen_again)
    nearest = look_up(others, find_nearest(seen_again, others, is_exact))
    nearest = torch.minimum(between, distance(seen_again, nearest))
    usual = _mean(between, (damaged == 0).float(), is_seen)
    return _mean(torch.log1p(usual / nearest), weight, is_seen)


def _mean(values, *weights):
    """Return the mean, weighted by the product of those weights that are not None.

    Weights are in 0..1; where they sum to little, it is pulled towards 0.
    """
    weights = [x for x in weights if x is not None]
    if not weights:
        return values.mean()
    weights = functools.reduce(torch.mul, weights)
    return (values * weights).sum() / (weights.sum() + 1)


def seen_cells(is_seen, patch_size, stride):
    """Which patches hold a pixel to look at, 1 or 0, (n_patches,); None: all."""
    if is_seen is None:
        return None
    return (damaged_fraction(is_seen, patch_size, stride) > 0).float().flatten()


def damaged_fraction(is_damaged, patch_size, stride):
    """Fraction of damaged pixels of each patch, (n, rows, cols)."""
    # Sums over squares as differences of sums from the corner: exact for whole numbers.
    sums = F.pad(is_damaged[:, 0], (1, 0, 1, 0)).cumsum(1).cumsum(2)
    strips = sums[:, patch_size::stride] - sums[:, :-patch_size:stride]
    boxes = strips[:, :, patch_size::stride] - strips[:, :, :-patch_size:stride]
    return boxes / patch_size**2
