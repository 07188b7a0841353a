"""The patch encoders, evaluated patch by patch or densely over whole images."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._encoding.base import (
    SMALLEST_PATCH,
    EmptyConv2d,
    PatchEncoder,
    grid_shape,
)

# The paper's channels and slope.
_SMALL_CHANNELS = (32, 64, 128, 128, 64, 32, 32)
_HIDDEN = 128
_SLOPE = 0.1
# Standard deviation of features before the last tanh, once they are standardised.
_LAST_STD = 0.5
_TINY = 1e-6  # instead of dividing by a deviation of 0


class HierarchicalEncoder(PatchEncoder):
    r"""The paper's encoder: :math:`f_{big}(p) = g_{big}(f_{small}(p))`.

    A patch of 64 pixels is the 2 x 2 grid of the features of its quarters, joined by
    `g_big`; the same step repeats for 128.
    """

    name = "hierarchical"

    def __init__(self, n_channels, embedding_dim, patch_size):
        super().__init__(n_channels, embedding_dim, patch_size)
        channels = (n_channels, *_SMALL_CHANNELS, embedding_dim)
        self.small = conv_stack(channels, (3,) * 8, (2, 1, 1, 1, 1, 1, 1, 1))
        self.big = nn.ModuleList(
            conv_stack((embedding_dim, _HIDDEN, embedding_dim), (2, 1), (1, 1))
            for _ in self.patch_sizes[1:]
        )

    def encode_patches(self, batches):
        """Features of several batches of patches, in one pass of the small encoder."""
        tiles = [_split_tiles(patches) for patches in batches]  # (n * g * g, c, 32, 32)
        features = run_stack(self.small, torch.cat(tiles), 2).flatten(1)
        features = features.split([len(tile) for tile in tiles])
        return [
            self._join_tiles(x, len(patches))
            for x, patches in zip(features, batches, strict=True)
        ]

    def _join_tiles(self, x, n_patches):
        grid = math.isqrt(len(x) // n_patches)
        x = x.reshape(n_patches, grid, grid, -1).permute(0, 3, 1, 2)  # (n, D, g, g)
        for big in self.big[: int(math.log2(grid))]:
            x = _run_big(big, x, dilation=1, stride=2)
        return x.flatten(1)  # (n, D)

    def encode_images(self, images, strides):
        """Features of all patches of whole images, computed once for all scales."""
        steps = _common_steps(self.patch_sizes, strides)
        x = run_stack(self.small, images, steps[0])
        features = []
        for i, (size, stride) in enumerate(zip(self.patch_sizes, strides, strict=True)):
            if i > 0:
                dilation = size // 2 // steps[i - 1]
                x = _run_big(self.big[i - 1], x, dilation, steps[i] // steps[i - 1])
            every = stride // steps[i]
            features.append(_crop(x[:, :, ::every, ::every], images, size, stride))
        return features

    @torch.no_grad()
    def standardize(self, images):
        """Rescale every layer to outputs of mean 0 and deviation 1 on these images."""
        x = standardize_stack(self.small, images, dilation=1)
        for size, big in zip(self.patch_sizes, self.big, strict=False):
            x = standardize_stack(big, x, dilation=size // self.dense_stride)


def conv_stack(channels, kernel_sizes, strides):
    shapes = zip(channels[:-1], channels[1:], kernel_sizes, strides, strict=True)
    return nn.ModuleList(
        EmptyConv2d(n_in, n_out, kernel, stride=stride)
        for n_in, n_out, kernel, stride in shapes
    )


def run_stack(convs, x, step):
    """Run convolutions so that neighbouring outputs lie `step` pixels apart.

    A stride that would skip wanted positions becomes a dilation of the layers behind
    it, so any step gives exactly what the patches, cut out one by one, would give.
    """
    dilation = 1
    for conv in convs[:-1]:
        stride = math.gcd(conv.stride[0], step)
        x = _run_layer(conv, x, stride, dilation, is_last=False)
        step //= stride
        dilation *= conv.stride[0] // stride
    return _run_layer(convs[-1], x, step, dilation, is_last=True)


def _run_big(convs, x, dilation, stride):
    """Join features that lie `dilation` apart by the two layers of `g_big`."""
    x = _run_layer(convs[0], x, stride, dilation, is_last=False)
    return _run_layer(convs[1], x, stride=1, dilation=1, is_last=True)


def _run_layer(conv, x, stride, dilation, is_last):
    """Run a convolution with another stride and dilation, and its activation."""
    x = F.conv2d(x, conv.weight, conv.bias, stride, dilation=dilation)
    return torch.tanh(x) if is_last else F.leaky_relu(x, _SLOPE)


def standardize_stack(convs, x, dilation):
    """Rescale convolutions one after the other; return what the last one puts out.

    A dilation is that of the first, which joins features that lie apart.
    """
    for conv in convs:
        last = conv is convs[-1]
        x = F.conv2d(x, conv.weight, conv.bias, conv.stride, dilation=dilation)
        dilation = 1
        mean = x.mean(dim=(0, 2, 3))
        scale = (_LAST_STD if last else 1) / (x.std(dim=(0, 2, 3)) + _TINY)
        conv.weight *= scale[:, None, None, None]
        conv.bias.copy_((conv.bias - mean) * scale)
        x = (x - mean[:, None, None]) * scale[:, None, None]
        x = torch.tanh(x) if last else F.leaky_relu(x, _SLOPE)
    return x


def _common_steps(patch_sizes, strides):
    """Pixels between the features each scale must have, for itself and larger ones."""
    steps = [strides[-1]]
    for size, stride in zip(patch_sizes[-2::-1], strides[-2::-1], strict=True):
        steps.insert(0, math.gcd(stride, size, steps[0]))
    return steps


def _crop(x, images, patch_size, stride):
    """Drop features of patches that reach over the edge.

    The networks do not look at a patch's last rows and columns, so they would also
    answer for a patch that sticks out by as much.
    """
    rows, cols = grid_shape(images.shape[2:], patch_size, stride)
    return x[:, :, :rows, :cols]


def _split_tiles(patches):
    """Cut patches into tiles of the smallest size, channels last in memory."""
    n, c, size, _ = patches.shape
    grid, tile = size // SMALLEST_PATCH, SMALLEST_PATCH
    x = patches.permute(0, 2, 3, 1).reshape(n, grid, tile, grid, tile, c)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(n * grid * grid, tile, tile, c)
    return x.permute(0, 3, 1, 2)  # (n * g * g, c, 32, 32)
