"""What the comparison sees of distances: ratios, on one grid for all scales."""

import functools
import math

import numpy as np
import torch

from skpatchsvdd._comparison.network import STEP

# Logarithms of ratios are cut here: what is farther away is damaged all the same.
_FARTHEST = 4.0


def arrange(distances, usual, typical, patch_size, stride, image_size):
    """Return what is known of a scale at every eighth pixel, (n, N_INPUTS, rows, cols).

    Of the distances of patches (n, rows, cols) to the nearest normal ones, what is
    usual for such patches, and `typical`, what is usual for all, a number or (n, 1, 1).
    """
    tiny = math.exp(-_FARTHEST)
    far, normal = (
        (x / typical).clamp(min=tiny).log().clamp(max=_FARTHEST)
        for x in (distances, usual)
    )
    measures = torch.stack([far, normal, far - normal], dim=1)
    down, across = (
        _place(length, n, patch_size, stride, measures.device)
        for length, n in zip(image_size, measures.shape[2:], strict=True)
    )
    measures = down @ measures @ across.T
    size = torch.full_like(measures[:, :1], math.log2(patch_size / 32))
    return torch.cat([measures, size], dim=1)


@functools.lru_cache(maxsize=32)
def _place(length, n_patches, patch_size, stride, device):
    """Weights of patches at every eighth pixel along an axis, by linear interpolation.

    Beyond the middles of the first and the last patch, these stand for all.
    """
    pixels = np.arange(0, length, STEP) + 1  # the middles of every fourth pair
    middles = patch_size / 2 + stride * np.arange(n_patches)
    weights = [np.interp(pixels, middles, own) for own in np.eye(n_patches)]
    return torch.from_numpy(np.stack(weights, axis=1).astype(np.float32)).to(device)
