"""The embedding of pretrained features: half whitened, then trained.

The losses are those of dense training, on features that are encoded once: two views of
some crops, from which every step draws pairs of patches.
"""

import math

import numpy as np
import torch

from skpatchsvdd._encoding import choose_patches, grid_shape
from skpatchsvdd._training.losses import (
    DAMAGED,
    DenseLoss,
    Pairs,
    damaged_fraction,
    describe_pairs,
    draw_pairs,
    look_up,
    seen_cells,
)
from skpatchsvdd._utils import exact_convolutions
from skpatchsvdd.metrics import detection_auroc

# Images whose features are looked at, and of large ones, of which a few tiles are.
_N_IMAGES, _N_LARGE = 64, 8
# Variance that is added along every axis, as a fraction of the mean one: what hardly
# varies does not count without bounds. With few images more of it, as a fraction
# divided by their number.
_SHRINKAGE, _FEW = 0.02, 1.0
# Of variances, by which features are scaled: -1/2 would whiten them.
_POWER = -1 / 4
# Crops that are encoded, in two views each, at most, how many at a time, and how many
# pairs of a scale each gives at least.
_N_CROPS, _N_TOGETHER, _N_EACH = 128, 16, 64
# Patches of second views, and those of first views they are compared with, of a check.
_N_CHECKED, _N_COMPARED = 1024, 4096
# How much the learnt distance counts beside the initial one.
_LEARNT = 0.5


def whiten(encoder, images, setting):
    r"""Return an encoder whose embedding half whitens the features of normal images.

    With the covariance :math:`C` of the features of all their patches at a scale, in
    units of the mean variance, the squared distance of two patches is
    :math:`(f - g)^T (C + s I)^{-1/2} (f - g)`: along axes on which the part itself
    varies, differences count less. Of fewer dimensions, the main axes are kept.

    The power is one half of Mahalanobis': whole whitening finds hardly more, and takes
    away what exact search is fast by, that few axes tell most.
    """
    n_dims = encoder.config[1]
    matrices = [
        whitening_matrix(covariance, len(images), n_dims)
        for covariance in measure_covariances(encoder, images, setting)
    ]
    return encoder.embed(matrices)


def measure_covariances(encoder, images, setting):
    """Return the covariance of features before they are embedded, by scale."""
    plain = encoder.embed([torch.eye(encoder.full_length)] * len(encoder.embedding))
    dense = setting.make(plain)
    choose, cells = choose_patches(dense)
    is_large = choose is not list or setting.reduction > 1
    n = min(_N_LARGE if is_large else _N_IMAGES, len(images))
    spaced = np.linspace(0, len(images) - 1, n).astype(int)
    covariances = []
    for x, counted in zip(
        dense.encode_stack(images.take(spaced), choose), cells, strict=True
    ):
        rows = x.flatten(1, 2)[:, torch.from_numpy(counted).to(x.device)].flatten(0, 1)
        # In float64, on the CPU: the same on all machines but for rounding.
        rows = rows.cpu().double()
        rows = rows - rows.mean(dim=0)
        covariances.append(rows.T @ rows / len(rows))
    return covariances


def whitening_matrix(covariance, n_images, n_dims):
    """Return the matrix, (n_dims, n_features), that half whitens features."""
    mean = covariance.diagonal().mean()
    values, axes = torch.linalg.eigh(covariance)
    values, axes = values.flip(0).clamp(min=0), axes.flip(1)
    if mean == 0:  # nothing varies
        return axes.T[:n_dims]
    scales = (values / mean + shrinkage(n_images)) ** _POWER
    return (axes * scales).T[:n_dims]


def shrinkage(n_images):
    """Return what is added to all variances, as a fraction of the mean one."""
    return _SHRINKAGE + _FEW / n_images


class FeaturePool:
    """The features of two views of crops, encoded once: `n_pairs` will be drawn.

    By scale: `tables` (2 * n, 64) are the features of all patches, those of first views
    first, whatever the encoder's embedding; `damaged` (n,) is the fraction of their
    pixels that are damaged in the second view; `seen` (n,) is 1 where they hold a pixel
    to look at, 0 elsewhere, or None, which counts all.
    """

    def __init__(self, encoder, sampler, damages, n_pairs):
        self.draws, self.device = sampler.draws, sampler.device
        self.crop_size = sampler.crop_size
        center = sampler.center.flatten()[0]
        self.initial = [x.detach().cpu().double() for x in encoder.embedding]
        self.tables, self.damaged, self.seen = [], [], []
        n_crops = min(_N_CROPS, n_pairs // _N_EACH)
        batches = [
            _describe(encoder, sampler.crops(_N_TOGETHER, damages), center)
            for _ in range(max(n_crops // _N_TOGETHER, 1))
        ]
        for scale in zip(*batches, strict=True):
            first, second, damaged, seen = zip(*scale, strict=True)
            self.tables.append(torch.cat(first + second))
            self.damaged.append(torch.cat(damaged))
            self.seen.append(None if seen[0] is None else torch.cat(seen))

    def check(self, encoder):
        """Say how well synthetic defects are told from patches without, 1 is best.

        By the distance to the nearest patch of all first views, as in inspection: the
        area under the ROC curve, and its mean over the scales.
        """
        scores = []
        scales = zip(self.tables, self.damaged, encoder.embedding, strict=True)
        for i, (table, damaged, matrix) in enumerate(scales):
            plain, second = (
                self._drop_unseen(i, x).to(matrix.device) for x in table.chunk(2)
            )
            is_damaged = self._drop_unseen(i, damaged).to(matrix.device) > DAMAGED
            chosen = [
                _thin(x.nonzero()[:, 0], _N_CHECKED) for x in (is_damaged, ~is_damaged)
            ]
            if not all(map(len, chosen)):
                continue
            plain = _thin(plain, _N_COMPARED) @ matrix.detach().T
            bad, good = (
                torch.cdist(second[x] @ matrix.detach().T, plain).amin(dim=1)
                for x in chosen
            )
            labels = np.repeat([-1, 1], [len(bad), len(good)])
            distances = torch.cat([bad, good]).cpu().double().numpy()
            scores.append(detection_auroc(labels, -distances))
        return float(np.mean(scores)) if scores else 0.5

    def _drop_unseen(self, scale, values):
        """Return the values of those patches of a scale that are to be looked at."""
        seen = self.seen[scale]
        return values if seen is None else values[seen > 0]

    def join_features(self, encoder):
        """Return an encoder of learnt and initial distances, half and half.

        The squared distance is the mean of that of the embedding that training began
        with and of the learnt one, scaled so that both are alike on average. Both side
        by side would have this distance; they are brought to their D main axes.
        """
        matrices = []
        pairs = zip(self.initial, encoder.embedding, strict=True)
        for i, (initial, learnt) in enumerate(pairs):
            # In float64, on the CPU: the same on all machines but for rounding.
            first, _ = self.tables[i].chunk(2)
            x = self._drop_unseen(i, first).cpu().double()
            x, learnt = x - x.mean(dim=0), learnt.detach().cpu().double()
            covariance = x.T @ x / len(x)
            metric, both = learnt.T @ learnt, initial.T @ initial
            spread, wanted = ((x * covariance).sum() for x in (metric, both))
            both *= 1 - _LEARNT
            if spread > 0:
                both += _LEARNT * metric * (wanted / spread)
            values, axes = torch.linalg.eigh(both)
            root = axes * values.clamp(min=0).sqrt() @ axes.T
            if len(learnt) < len(root):
                _, main = torch.linalg.eigh(root @ covariance @ root)
                root = main.flip(1)[:, : len(learnt)].T @ root
            matrices.append(root)
        return encoder.embed(matrices)


class EmbeddingLoss(DenseLoss):
    """The terms of `DenseLoss`, but that of the scale, on `n_pairs` pairs of a pool."""

    precision = "float32"
    is_drawn_ahead = True
    decay = 0.0
    scale_weight = 0.0

    def __init__(self, encoder, lam, damage_weight, n_pairs, tables):
        super().__init__(encoder, lam, damage_weight, n_pairs)
        self.strides, self.tables = encoder.strides, tables

    def draw(self, sampler, n_steps=1):
        """Draw pairs of patches of each scale."""
        draws = sampler.draws
        size, n_pairs, pairs = sampler.crop_size, n_steps * self.n_crops, []
        parts = (sampler.damaged, sampler.seen)
        scales = zip(self.sizes, self.strides, *parts, strict=True)
        for patch_size, stride, damaged, seen in scales:
            ends = draw_pairs(n_pairs, 1, size, patch_size, stride, draws)
            grid = grid_shape((size, size), patch_size, stride)
            crop = draws.integers(0, len(damaged) // math.prod(grid), (n_pairs,))
            ends[0][:, 0] = ends[1][:, 0] = crop
            described = describe_pairs(*ends, grid, damaged, seen, len(damaged))
            if math.prod(grid) == 1:  # there are no directions to learn
                unseen = torch.zeros_like(described.damaged)
                described = described._replace(is_other_seen=unseen)
            pairs.append(described)
        return pairs

    def forward(self, encoder, batch):
        """Return the loss terms."""
        pairs = [Pairs(*x) for x in batch]
        scales = zip(self.tables, encoder.embedding, pairs, strict=True)
        trios = [look_up(table, x.cells.T) @ matrix.T for table, matrix, x in scales]
        return self._measure_all(trios, pairs)


def _describe(encoder, crops, center):
    """Return, by scale, features before they are embedded, damaged and seen cells."""
    views = []
    for images in (crops.first + center, crops.second + center):
        with torch.no_grad(), exact_convolutions(images.device):
            maps = encoder.recall_pretrained(images)
        views.append([x.permute(0, 2, 3, 1).float().flatten(0, 2) for x in maps])
    scales = zip(encoder.patch_sizes, encoder.strides, strict=True)
    return [
        (
            first,  # (n_cells, 64)
            second,
            damaged_fraction(crops.is_damaged, *scale).flatten(),
            seen_cells(crops.is_seen, *scale),
        )
        for first, second, scale in zip(*views, scales, strict=True)
    ]


def _thin(rows, n):
    """Return at most n rows, evenly spaced."""
    return rows[:: -(-len(rows) // n)] if len(rows) else rows
