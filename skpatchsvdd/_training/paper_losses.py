"""The paper's losses, on pairs of patches."""

import torch
import torch.nn.functional as F

from skpatchsvdd._encoding import reset_parameters
from skpatchsvdd._training.directions import make_classifiers
from skpatchsvdd._training.loop import Objective
from skpatchsvdd._training.measures import distance

# Batches of patches whose mean initial feature is the centre of the "svdd" loss.
_N_CENTER_BATCHES, _CENTER_BATCH = 8, 128


def make_paper_objective(loss, lam, encoder, sampler, batch_size, generator):
    """Make the objective, patch by patch, that a `loss` parameter names."""
    if loss == "svdd":
        objective = SVDDLoss(encoder, batch_size, sampler)
    elif loss == "svdd_prime":
        objective = SVDDPrimeLoss(encoder, batch_size)
    else:
        objective = PatchSVDDLoss(encoder, batch_size, lam)
        reset_parameters(objective, generator)
        objective.fix_last_layers()
    return objective.to(sampler.device)


class PaperLoss(Objective):
    """How the paper's losses are minimised: Adam as it is, in float32."""

    schedule = "constant"
    precision = "float32"

    def __init__(self, encoder, batch_size, lam=1.0):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.batch_size = batch_size
        self.weights = {f"svdd_{k}": lam for k in self.sizes}

    def _draw_each(self, draw, n_steps):
        return [draw(n_steps * self.batch_size, k) for k in self.sizes]


class SVDDPrimeLoss(PaperLoss):
    r"""The SVDD' loss alone, without the position task (the paper's ablation).

    :math:`L_{SVDD'} = \| f(p) - f(p') \|_2` with :math:`p'` close to :math:`p`.
    """

    def draw(self, sampler, n_steps=1):
        """Draw pairs for each scale."""
        return self._draw_each(sampler.jitter_pairs, n_steps)

    def forward(self, encoder, batch):
        """Return the loss terms."""
        features = encoder.encode_patches([torch.cat(pair) for pair in batch])
        return self._name(svdd_prime_loss(x) for x in features)


class PatchSVDDLoss(SVDDPrimeLoss):
    r"""The paper's loss, summed over the scales.

    .. math:: L = L_{SSL} + \lambda L_{SVDD'}

    :math:`L_{SSL}` is the cross-entropy of telling, from the difference of their
    features, in which of eight directions one patch lies from another.
    """

    def __init__(self, encoder, batch_size, lam):
        super().__init__(encoder, batch_size, lam)
        self.weights = {f"position_{k}": 1.0 for k in self.sizes} | self.weights
        self.classifiers = make_classifiers(encoder)

    def fix_last_layers(self):
        """Scale each classifier's last weight to columns of norm 1, for good."""
        for classifier in self.classifiers:
            last = classifier[-1]
            last.weight.requires_grad_(False)
            last.weight /= last.weight.norm(dim=0, keepdim=True)

    def draw(self, sampler, n_steps=1):
        """Draw pairs for each scale and loss."""
        positions = self._draw_each(sampler.position_pairs, n_steps)
        return positions, super().draw(sampler, n_steps)

    def forward(self, encoder, batch):
        """Return the loss terms."""
        positions, jitters = batch
        pairs = [torch.cat(trio[:2]) for trio in (*positions, *jitters)]
        features = encoder.encode_patches(pairs)
        n = len(self.sizes)
        directions = [trio[2] for trio in positions]
        trios = zip(self.classifiers, features[:n], directions, strict=True)
        losses = [position_loss(*trio) for trio in trios]
        return self._name(losses + [svdd_prime_loss(x) for x in features[n:]])


class SVDDLoss(PaperLoss):
    r"""Deep SVDD on patches: :math:`\| f(p) - c \|_2` with one centre a scale.

    The centre is the mean of the initial features and does not move.
    """

    def __init__(self, encoder, batch_size, sampler):
        super().__init__(encoder, batch_size)
        self.centers = [_mean_feature(encoder, sampler, k) for k in self.sizes]

    def draw(self, sampler, n_steps=1):
        """Draw patches for each scale."""
        return self._draw_each(sampler.patches, n_steps)

    def forward(self, encoder, batch):
        """Return the loss terms."""
        features = zip(encoder.encode_patches(batch), self.centers, strict=True)
        return self._name(distance(x.float(), c, dim=1).mean() for x, c in features)


def position_loss(classifier, features, direction):
    """Cross-entropy of the direction between pairs stacked as (2 * n, D)."""
    first, second = features.chunk(2)
    return F.cross_entropy(classifier(first - second).float(), direction)


def svdd_prime_loss(features):
    """Mean distance between pairs stacked as (2 * n, D)."""
    first, second = features.float().chunk(2)
    return (first - second).norm(dim=1).mean()


@torch.no_grad()
def _mean_feature(encoder, sampler, patch_size):
    means = [
        encoder(sampler.patches(_CENTER_BATCH, patch_size)).mean(dim=0)
        for _ in range(_N_CENTER_BATCHES)
    ]
    return torch.stack(means).mean(dim=0)
