"""The paper's ablations: what the package does not offer, as it is never better.

`ablate` is the one door: inside of it, `PatchSVDD(encoder="flat")` and "raw" exist, or
all trainings minimise another loss. What is fitted inside scores outside as well.
"""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from _hooks import (
    ENCODERS,
    DenseLoss,
    Objective,
    PatchEncoder,
    PatchSVDDLoss,
    conv_stack,
    distance,
    grid_shape,
    run_stack,
    standardize_stack,
    svdd_prime_loss,
    training,
)

# The paper's size of patches that are encoded as a whole, and its channels.
FLAT_PATCH = 64
_FLAT_CHANNELS = (64, 64, 128)
# Batches of patches whose mean initial feature is the centre of the SVDD loss.
_N_CENTER_BATCHES, _CENTER_BATCH = 8, 128


@contextmanager
def ablate(loss=None):
    """Let "flat" and "raw" be encoders, and trainings minimise a loss of `LOSSES`."""
    original = training.make_objective
    if loss is not None:
        training.make_objective = LOSSES[loss]
    ENCODERS.update(_ENCODERS)
    try:
        yield
    finally:
        training.make_objective = original
        for name in _ENCODERS:
            del ENCODERS[name]


def make_svdd(encoder, sampler, options, generator):
    """Make the loss of Deep SVDD, patch by patch or on all patches of crops."""
    cls = SVDDLoss if options.training == "paper" else DenseSVDDLoss
    return cls(encoder, sampler, options.batch_size).to(sampler.device)


def make_svdd_prime(encoder, sampler, options, generator):
    """Make L_SVDD' alone, patch by patch or on all patches of crops."""
    cls = SVDDPrimeLoss if options.training == "paper" else DenseSVDDPrimeLoss
    return cls(encoder, options.batch_size).to(sampler.device)


LOSSES = {"svdd": make_svdd, "svdd_prime": make_svdd_prime}


class FlatEncoder(PatchEncoder):
    """The paper's non-hierarchical encoder, for patches of 64."""

    name = "flat"
    dense_stride = 8

    def __init__(self, n_channels, embedding_dim, patch_size=FLAT_PATCH):
        super().__init__(n_channels, embedding_dim, patch_size)
        channels = (n_channels, *_FLAT_CHANNELS, embedding_dim)
        self.convs = conv_stack(channels, (5,) * 4, (2, 2, 2, 1))

    @staticmethod
    def scales(patch_size):
        """Patch sizes this encoder inspects: its own alone."""
        return (patch_size,)

    @classmethod
    def check_size(cls, patch_size, image_size):
        """Raise if patches are not of the one size, or do not fit into images."""
        if patch_size != FLAT_PATCH:
            raise ValueError(f"encoder='flat' is for patch_size={FLAT_PATCH} alone.")
        super().check_size(patch_size, image_size)

    def encode_patches(self, batches):
        """Features of several batches of patches, in one pass."""
        features = run_stack(self.convs, torch.cat(batches), 8).flatten(1)
        return list(features.split([len(patches) for patches in batches]))

    def encode_images(self, images, strides):
        """Features of all patches of whole images."""
        x = run_stack(self.convs, images, strides[0])
        # Those at the edges would be of patches that reach over it.
        rows, cols = grid_shape(images.shape[2:], self.patch_sizes[0], strides[0])
        return [x[:, :, :rows, :cols]]

    @torch.no_grad()
    def standardize(self, images):
        """Rescale every layer to outputs of mean 0 and deviation 1 on these images."""
        standardize_stack(self.convs, images, dilation=1)


class RawEncoder(PatchEncoder):
    """No encoder: the patch's own pixels are its feature."""

    name = "raw"
    is_trainable = False

    def __init__(self, n_channels, embedding_dim, patch_size):
        super().__init__(n_channels, embedding_dim, patch_size)
        self.lengths = tuple(n_channels * size**2 for size in self.patch_sizes)

    def encode_patches(self, batches):
        """Pixels of each patch as one row."""
        return [patches.flatten(1) for patches in batches]

    def encode_images(self, images, strides):
        """Pixels of all patches of whole images."""
        features = []
        for size, stride in zip(self.patch_sizes, strides, strict=True):
            rows, cols = grid_shape(images.shape[2:], size, stride)
            x = F.unfold(images, size, stride=stride)  # (n, c * K * K, rows * cols)
            features.append(x.reshape(len(images), -1, rows, cols))
        return features


_ENCODERS = {x.name: x for x in (FlatEncoder, RawEncoder)}


class SVDDPrimeLoss(PatchSVDDLoss):
    r"""The SVDD' loss alone, without the position task.

    :math:`L_{SVDD'} = \| f(p) - f(p') \|_2` with :math:`p'` close to :math:`p`.
    """

    def __init__(self, encoder, batch_size):
        super().__init__(encoder, 1.0, batch_size)
        self.weights = {f"svdd_{k}": 1.0 for k in self.sizes}
        self.classifiers = None

    def draw(self, sampler, n_steps=1):
        """Draw pairs for each scale."""
        n = n_steps * self.batch_size
        return [sampler.jitter_pairs(n, k) for k in self.sizes]

    def forward(self, encoder, batch):
        """Return the loss terms."""
        features = encoder.encode_patches([torch.cat(pair) for pair in batch])
        return self._name(svdd_prime_loss(x) for x in features)


class DenseSVDDPrimeLoss(DenseLoss):
    """L_SVDD' of dense training alone, with the term that keeps its scale."""

    def __init__(self, encoder, n_crops):
        super().__init__(encoder, 1.0, 0.0, n_crops)
        self.weights = {
            name: weight
            for name, weight in self.weights.items()
            if not name.startswith("position")
        }

    def _measure(self, trio, pairs, classifier):
        _, _, damaged, is_seen, _ = pairs
        x, seen_again, _ = trio.unbind()
        return self._contrast(x, seen_again, damaged, is_seen)


class SVDDLoss(Objective):
    r"""Deep SVDD on patches: :math:`\| f(p) - c \|_2` with one centre a scale.

    The centre is the mean of the initial features and does not move.
    """

    schedule = "constant"
    precision = "float32"

    def __init__(self, encoder, sampler, batch_size):
        super().__init__()
        self.sizes = encoder.patch_sizes
        self.batch_size = batch_size
        self.weights = {f"svdd_{k}": 1.0 for k in self.sizes}
        self.centers = [_mean_feature(encoder, sampler, k) for k in self.sizes]

    def draw(self, sampler, n_steps=1):
        """Draw patches for each scale."""
        n = n_steps * self.batch_size
        return [_draw_patches(sampler, n, k) for k in self.sizes]

    def forward(self, encoder, batch):
        """Return the loss terms."""
        features = zip(encoder.encode_patches(batch), self.centers, strict=True)
        return self._name(distance(x.float(), c).mean() for x, c in features)


class DenseSVDDLoss(Objective):
    """Deep SVDD on all patches of crops; see `SVDDLoss`."""

    def __init__(self, encoder, sampler, n_crops):
        super().__init__()
        self.strides = (encoder.dense_stride,) * len(encoder.patch_sizes)
        self.n_crops = n_crops
        self.weights = {f"svdd_{k}": 1.0 for k in encoder.patch_sizes}
        with torch.no_grad():
            maps = encoder.encode_images(sampler.plain(n_crops), self.strides)
        self.centers = [x.mean(dim=(0, 2, 3)) for x in maps]

    def draw(self, sampler, n_steps=1):
        """Draw crops."""
        return sampler.plain(n_steps * self.n_crops)

    def forward(self, encoder, batch):
        """Return the loss terms."""
        maps = encoder.encode_images(batch, self.strides)
        return self._name(
            distance(x.float(), center[:, None, None]).mean()
            for x, center in zip(maps, self.centers, strict=True)
        )


@torch.no_grad()
def _mean_feature(encoder, sampler, patch_size):
    means = [
        encoder(_draw_patches(sampler, _CENTER_BATCH, patch_size)).mean(dim=0)
        for _ in range(_N_CENTER_BATCHES)
    ]
    return torch.stack(means).mean(dim=0)


def _draw_patches(sampler, n_patches, patch_size):
    """Draw patches anywhere, shape (n_patches, n_channels, K, K)."""
    return sampler.crop(*sampler._draw_corners(n_patches, patch_size), patch_size)
