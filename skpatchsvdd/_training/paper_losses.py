"""The paper's losses, on pairs of patches."""

import torch
import torch.nn.functional as F

from skpatchsvdd._training.loop import Objective
from skpatchsvdd._training.measures import make_classifiers


class PatchSVDDLoss(Objective):
    r"""The paper's loss, summed over the scales, for Adam as it is, in float32.

    .. math:: L = L_{SSL} + \lambda L_{SVDD'}

    :math:`L_{SSL}` is the cross-entropy of telling, from the difference of their
    features, in which of eight directions one patch lies from another, and
    :math:`L_{SVDD'} = \| f(p) - f(p') \|_2` with :math:`p'` close to :math:`p`.
    """

    schedule = "constant"
    precision = "float32"

    def __init__(self, encoder, lam, batch_size):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.batch_size = batch_size
        self.weights = {f"position_{k}": 1.0 for k in self.sizes}
        self.weights |= {f"svdd_{k}": lam for k in self.sizes}
        self.classifiers = make_classifiers(encoder)

    def reset_parameters(self, generator):
        """Draw weights; each classifier's last one has columns of norm 1, for good."""
        super().reset_parameters(generator)
        for classifier in self.classifiers:
            last = classifier[-1]
            last.weight.requires_grad_(False)
            last.weight /= last.weight.norm(dim=0, keepdim=True)

    def draw(self, sampler, n_steps=1):
        """Draw pairs for each scale and loss."""
        n = n_steps * self.batch_size
        positions = [sampler.position_pairs(n, k) for k in self.sizes]
        return positions, [sampler.jitter_pairs(n, k) for k in self.sizes]

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


def position_loss(classifier, features, direction):
    """Cross-entropy of the direction between pairs stacked as (2 * n, D)."""
    first, second = features.chunk(2)
    return F.cross_entropy(classifier(first - second).float(), direction)


def svdd_prime_loss(features):
    """Mean distance between pairs stacked as (2 * n, D)."""
    first, second = features.float().chunk(2)
    return (first - second).norm(dim=1).mean()
