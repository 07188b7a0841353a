"""Training of an embedding of features that are known beforehand.

The losses are those of dense training, on features that are encoded once: two views of
some crops, from which every step draws pairs of patches.
"""

import math

import numpy as np
import torch

from skpatchsvdd._encoding import grid_shape, remember, reset_parameters
from skpatchsvdd._training.dense_losses import (
    DAMAGED,
    DenseLoss,
    Pairs,
    damaged_fraction,
    seen_cells,
)
from skpatchsvdd._training.measures import look_up
from skpatchsvdd._training.pairs import draw_pairs, number_cells
from skpatchsvdd._utils import Draws, exact_convolutions
from skpatchsvdd.metrics import detection_auroc

# Crops that are encoded, in two views each, at most, how many at a time, and how many
# pairs of a scale each gives at least.
_N_CROPS, _N_TOGETHER, _N_EACH = 128, 16, 64
# Patches of second views, and those of first views they are compared with, of a check.
_N_CHECKED, _N_COMPARED = 1024, 4096
# How much the learnt distance counts beside that of the features as they are.
_LEARNT = 0.5


class FeaturePool:
    """The features of two views of crops, encoded once.

    Parameters
    ----------
    encoder : FormulaEncoder
        On the sampler's device. Its embedding does not matter.
    sampler : CropSampler
        Where the crops come from.
    is_damaged : bool
        Whether second views have synthetic defects.
    n_pairs : int
        Pairs of each scale that will be drawn.

    Attributes
    ----------
    tables : list of tensors of shape (2 * n, 64)
        For each scale, the features of all patches, those of first views first.
    damaged : list of tensors of shape (n,)
        Fraction of the pixels of each patch that are damaged in its second view.
    seen : list of tensors of shape (n,), or of None
        1 where a patch holds a pixel to look at, 0 elsewhere. None counts all.
    """

    def __init__(self, encoder, sampler, is_damaged, n_pairs):
        self.generator, self.device = sampler.generator, sampler.device
        self.crop_size = sampler.crop_size
        center = sampler.center.flatten()[0]
        draw = sampler.crops if is_damaged else sampler.intact_crops
        views, damaged, seen = ([], []), [], []
        scales = list(zip(encoder.patch_sizes, encoder.strides, strict=True))
        n_crops = min(_N_CROPS, n_pairs // _N_EACH)
        for _ in range(max(n_crops // _N_TOGETHER, 1)):
            crops = draw(_N_TOGETHER)
            for own, images in zip(views, (crops.first, crops.second), strict=True):
                own.append(_encode(encoder, images + center))
            damaged.append([damaged_fraction(crops.is_damaged, *x) for x in scales])
            seen.append([seen_cells(crops.is_seen, *x) for x in scales])
        firsts, seconds, self.damaged, self.seen = (
            [_join(own) for own in zip(*parts, strict=True)]
            for parts in (*views, damaged, seen)
        )
        self.tables = [torch.cat(x) for x in zip(firsts, seconds, strict=True)]

    def check(self, encoder):
        """Say how well synthetic defects are told from patches without, 1 is best.

        By the distance to the nearest patch of all first views, as in inspection: the
        area under the ROC curve, and its mean over the scales.
        """
        scores = []
        own = zip(self.tables, self.damaged, encoder.embedding, strict=True)
        for i, (table, damaged, matrix) in enumerate(own):
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
        """Return an encoder whose distances are those learnt and known, half and half.

        The squared distance is the mean of that of the features as they are and that
        of the embedding, which is scaled so that both are alike on average. Features
        and embedding side by side would have this distance; they are brought to their
        D main axes.
        """
        matrices = []
        for i, learnt in enumerate(encoder.embedding):
            # In float64, on the CPU: the same on all machines but for rounding.
            first, _ = self.tables[i].chunk(2)
            x = self._drop_unseen(i, first).cpu().double()
            x, learnt = x - x.mean(dim=0), learnt.detach().cpu().double()
            covariance = x.T @ x / len(x)
            metric = learnt.T @ learnt
            spread = (metric * covariance).sum()
            both = (1 - _LEARNT) * torch.eye(len(metric), dtype=torch.float64)
            if spread > 0:
                both += _LEARNT * metric * (covariance.trace() / spread)
            values, axes = torch.linalg.eigh(both)
            root = axes * values.clamp(min=0).sqrt() @ axes.T
            if len(learnt) < len(root):
                _, main = torch.linalg.eigh(root @ covariance @ root)
                root = main.flip(1)[:, : len(learnt)].T @ root
            matrices.append(root)
        return encoder.embed(matrices)


class EmbeddingLoss(DenseLoss):
    """The terms of `DenseLoss`, but that of the scale, on pairs of a pool.

    Parameters
    ----------
    encoder : FormulaEncoder
        What is trained.
    position_weight, lam, damage_weight : float
        Weights of the terms.
    n_pairs : int
        Pairs of each scale in a step.
    tables : list of tensors
        Those of the pool.
    """

    precision = "float32"
    is_drawn_ahead = True
    decay = 0.0
    scale_weight = 0.0

    def __init__(self, encoder, position_weight, lam, damage_weight, n_pairs, tables):
        super().__init__(encoder, position_weight, lam, damage_weight, n_pairs)
        self.strides, self.tables = encoder.strides, tables

    def draw(self, sampler, n_steps=1):
        """Draw pairs of patches of each scale."""
        draws = Draws(sampler.generator, sampler.device)
        size, n_pairs, pairs = sampler.crop_size, n_steps * self.n_crops, []
        parts = (sampler.damaged, sampler.seen)
        scales = zip(self.sizes, self.strides, *parts, strict=True)
        for patch_size, stride, damaged, seen in scales:
            first, second, direction = draw_pairs(
                n_pairs, 1, size, patch_size, stride, draws
            )
            grid = grid_shape((size, size), patch_size, stride)
            crop = draws.integers(0, len(damaged) // math.prod(grid), (n_pairs,))
            first[:, 0] = second[:, 0] = crop
            own, other = number_cells(first, grid), number_cells(second, grid)
            cells = torch.stack([own, own + len(damaged), other + len(damaged)], dim=1)
            own_seen, other_seen = (
                None if seen is None else seen[x] for x in (own, other)
            )
            if math.prod(grid) == 1:  # there are no directions to learn
                other_seen = torch.zeros_like(damaged[own])
            pairs.append(Pairs(cells, direction, damaged[own], own_seen, other_seen))
        return pairs

    def forward(self, encoder, batch):
        """Return the loss terms."""
        pairs = [Pairs(*x) for x in batch]
        own = zip(self.tables, encoder.embedding, pairs, strict=True)
        trios = [look_up(table, x.cells.T) @ matrix.T for table, matrix, x in own]
        return self._measure_all(trios, pairs)


def make_embedding_objective(
    loss, lam, damage_weight, encoder, sampler, n_pairs, generator
):
    """Make the objective that a `loss` parameter names."""
    weights = (1.0, lam, damage_weight)
    if loss == "svdd_prime":
        weights = (0.0, 1.0, 0.0)
    objective = EmbeddingLoss(encoder, *weights, n_pairs, sampler.tables)
    reset_parameters(objective, generator)
    return objective.to(sampler.device)


def _thin(rows, n):
    """Return at most n rows, evenly spaced."""
    return rows[:: -(-len(rows) // n)] if len(rows) else rows


def _encode(encoder, images):
    """Return features before they are embedded, by scale, (n, rows, cols, 64)."""
    with torch.no_grad(), exact_convolutions(images.device):
        maps = remember(encoder, images)
    return [x.permute(0, 2, 3, 1).float() for x in maps]


def _join(parts):
    """Return the values of all cells of maps one after the other; None is left out."""
    if parts[0] is None:
        return None
    flat = torch.cat(parts)
    return flat.reshape(-1, flat.shape[-1]) if flat.ndim == 4 else flat.flatten()
