"""The scales of "procedural": sizes of images, stages, and where patches lie."""

import functools
import math
from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._utils import normal_mode


class Scale(NamedTuple):
    """How features of patches of one size are made."""

    stage: int  # of the network, from 0
    zoom: float  # size at which the network sees the image, relative to it
    stride: int  # pixels from one patch to the next
    weight: float  # of its map among those of all scales


# Scales by patch size, from small to large. Small patches count more: the logarithms of
# normal images' scores by them alone differ less, on most parts, and weights are the
# inverse of their standard deviations, about.
SCALES = {
    8: Scale(stage=0, zoom=2.0, stride=8, weight=1.5),
    16: Scale(stage=1, zoom=1.5, stride=8, weight=1.1),
    32: Scale(stage=1, zoom=0.75, stride=16, weight=0.8),
    64: Scale(stage=2, zoom=0.75, stride=16, weight=0.6),
}
LARGEST = max(SCALES)
# Pixels from one cell of a stage to the next, and cells along each axis that the
# feature of a patch is the mean of.
STEPS, _WIDTHS = (4, 8, 16), (3, 2, 2)


def zoom_images(images, zoom):
    """Resize images, (n, c, height, width), with anti-aliasing."""
    if zoom == 1:
        return images
    down, across = (
        _resize_axis(length, zoom, images.device) for length in images.shape[2:]
    )
    return bring(images, down, across)


def take_patches(x, patch_size, image_size):
    """Return the features of all patches of a scale, (n, c, rows, cols).

    Of the cells of its stage: for each patch the mean over those around its middle.
    """
    down, across = (
        _patch_weights(length, n_cells, patch_size, x.device)
        for length, n_cells in zip(image_size, x.shape[2:], strict=True)
    )
    return bring(x, down, across)


def bring(x, down, across):
    """Return ``down @ x @ across.T``, as two products of two matrices: much faster."""
    return ((x @ across.T).mT @ down.T).mT


# Never dropped: a CUDA graph reads where they were when that was recorded.
@functools.cache
@normal_mode()
def _resize_axis(length, zoom, device):
    """Weight of each pixel in each of a resized axis, linear, (n_new, length)."""
    n_new = max(int(length * zoom), 1)
    width = max(1 / zoom, 1.0)
    middles = (np.arange(n_new) + 0.5) / zoom - 0.5
    away = abs(middles[:, None] - np.arange(length)) / width
    weights = np.maximum(1 - away, 0)
    weights /= weights.sum(axis=1, keepdims=True)
    return torch.from_numpy(weights.astype(np.float32)).to(device)


@functools.cache
@normal_mode()
def _patch_weights(length, n_cells, patch_size, device):
    """Weight of each cell of a stage in the feature of each patch along an axis.

    Cell i is centred on pixel i times the step of its stage, of the resized image.
    """
    stage, zoom, stride, _ = SCALES[patch_size]
    starts = np.arange(0, length - patch_size + 1, stride)
    middles = (zoom * (starts + patch_size / 2) - 0.5) / STEPS[stage]
    weights = average_cells(middles, _WIDTHS[stage], n_cells)
    return torch.from_numpy(weights).to(device)


def average_cells(middles, width, n_cells):
    """Return the weight of each cell in the mean over some around each middle.

    `width` is their number. What lies beyond the last cell is taken from it.
    """
    reach = math.ceil(width)
    cells = np.arange(-reach, n_cells + reach)
    left = np.maximum(middles[:, None] - width / 2, cells - 0.5)
    right = np.minimum(middles[:, None] + width / 2, cells + 0.5)
    overlap = np.maximum(right - left, 0) / width
    weights = np.zeros((len(middles), n_cells))
    for cell, own in zip(cells.clip(0, n_cells - 1), overlap.T, strict=True):
        weights[:, cell] += own
    return weights.astype(np.float32)
