"""The paper's training: its losses, and the pairs of patches that they are of."""

import torch
import torch.nn.functional as F

from skpatchsvdd._training.crops import Sampler, add_noise
from skpatchsvdd._training.loop import Objective
from skpatchsvdd._training.losses import DIRECTIONS, grid_steps, make_classifiers


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


class PairSampler(Sampler):
    """Draws pairs of patches; the second of position pairs may lie outside of `roi`."""

    def position_pairs(self, n_pairs, patch_size):
        """Draw neighbouring patches and the direction from the first to the second.

        Along each axis that the direction changes, the second patch lies 3K/4 to K - 1
        pixels away, clipped to the image; both get noise of their own.
        """
        index, corner = self._draw_corners(n_pairs, patch_size)
        direction = self.draws.integers(0, len(DIRECTIONS), (n_pairs,))
        nearest = 3 * patch_size // 4
        step = self.draws.integers(nearest, patch_size, (n_pairs, 2))
        moved = self._clip(corner + grid_steps(direction, 3) * step, patch_size)
        first = add_noise(self.crop(index, corner, patch_size), self.draws)
        second = add_noise(self.crop(index, moved, patch_size), self.draws)
        return first, second, direction

    def jitter_pairs(self, n_pairs, patch_size):
        """Draw patches and others shifted by up to K/32 pixels, within the image."""
        index, corner = self._draw_corners(n_pairs, patch_size)
        width = 2 * (patch_size // 32) + 1
        # One draw over all shifts but (0, 0), which is the middle of the square.
        shift = self.draws.integers(0, width * width - 1, (n_pairs,))
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
