"""From one score a patch to one value a pixel, and from several maps to one."""

import functools

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._images import enlarge_roi


def spread_scores(scores, patch_size, stride, image_size):
    """Give every pixel the mean score of the patches that cover it.

    From scores of patches, (n, rows, cols), to maps, (n, height, width). Pixels that no
    patch covers take the value of the nearest covered pixel, so the largest value is
    always that of a covered one.
    """
    # A patch covers a rectangle, so the mean over patches is a mean over rows followed
    # by one over columns: two small matrix products.
    down, across = (
        _mean_matrix(length, patch_size, stride, scores.device) for length in image_size
    )
    n = len(scores)
    # Expanded, so that every image has its own product and no other's shape matters.
    maps = torch.bmm(down.expand(n, -1, -1), scores)  # (n, height, cols)
    return torch.bmm(maps, across.T.expand(n, -1, -1))  # (n, height, width)


def find_covering(pixels, patch_size, stride):
    """Return the patches, (rows, cols), that pixels, (height, width), come from."""
    down, across = (
        _mean_matrix(length, patch_size, stride, pixels.device)
        for length in pixels.shape
    )
    return down.T @ pixels.to(down.dtype) @ across > 0


def join_maps(maps, weights):
    """Return the product of the maps of all scales, each to its weight."""
    # Pair by pair: a GPU compiles `prod` first, for seconds.
    if all(weight == 1 for weight in weights):
        return functools.reduce(torch.mul, maps)
    return geometric_mean(maps, weights)


def geometric_mean(factors, weights):
    """Return the product of tensors, each to its weight; one alone stays as it is."""
    if len(factors) == 1:
        return factors[0]
    if factors[0].device.type == "cpu":
        # Image by image: a CPU's power rounds differently at the end of an array.
        images = zip(*factors, strict=True)
        return torch.stack([_weigh(image, weights) for image in images])
    return _weigh(factors, weights)


def _weigh(factors, weights):
    pairs = zip(factors, weights, strict=True)
    powers = [x if weight == 1 else x.pow(weight) for x, weight in pairs]
    return functools.reduce(torch.mul, powers)


def mean_of_largest(maps, n_pixels):
    """Return the mean of the largest pixels of each map, (n_images,)."""
    if n_pixels == 1:
        return maps.amax(dim=(1, 2))
    return maps.flatten(1).topk(n_pixels, dim=1).values.mean(dim=1)


def resize_map(one_map, size, roi=None):
    """Resize a map (height, width) to its image; outside of a roi it stays 0."""
    if one_map.shape == tuple(size):
        return one_map
    x = torch.from_numpy(one_map)[None, None]
    x = F.interpolate(x, tuple(size), mode="bilinear", antialias=True)
    resized = x[0, 0].numpy()
    if roi is None:
        return resized
    return np.where(enlarge_roi(roi, size), resized, np.float32(0))


@functools.lru_cache(maxsize=32)
def _mean_matrix(length, patch_size, stride, device):
    """Weight of each patch in each pixel's mean along an axis, (length, n_patches)."""
    starts = np.arange(0, length - patch_size + 1, stride)
    offsets = np.arange(length)[:, None] - starts  # (length, n_patches)
    covers = (offsets >= 0) & (offsets < patch_size)
    covered = np.flatnonzero(covers.any(axis=1))
    nearest = np.abs(np.arange(length)[:, None] - covered).argmin(axis=1)
    covers = covers[covered[nearest]]
    means = (covers / covers.sum(axis=1, keepdims=True)).astype(np.float32)
    return torch.from_numpy(means).to(device)
