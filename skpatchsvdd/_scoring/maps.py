"""From distances of patches to one map of pixels, and to the score of an image."""

import functools
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._images import enlarge_roi

# Logits of damage of what is not looked at.
_UNDAMAGED = -1.0
# How much the coarse scales of large images, together, and their finest one count: that
# one as much as the four others. This was not tuned.
_WEIGHTS = (1.0, 4.0)
# By how much a pixel is raised, at least, that is like a known defect.
_RAISED = 1.05


class Found(NamedTuple):
    """How the patches of some images compare, by scale, (n_images, rows, cols) each."""

    distances: dict  # to the nearest normal patches
    variation: dict | None  # local normal variation
    near: dict | None  # to known defects, times their limits; see `Feedback.measure`

    def take(self, scales):
        """Return what was found at those of some scales that were compared."""
        return Found(*(x and {i: x[i] for i in scales if i in x} for x in self))


class Reading(NamedTuple):
    """Maps of images, (n_images, height, width), and how abnormal these are, (n,)."""

    maps: torch.Tensor
    abnormality: torch.Tensor


def join(found, logits, encoded, bank):
    """Return maps, scores and logits of images; see `Inspected`.

    Of a `DeviceBank`. What its `feedback` raises counts up to a level, and alarms of
    corrected pictures not at all.
    """
    (maps, abnormality), *raised = read_distances(found, logits, bank)
    for reading in raised:
        levels = bank.levels[-1:].expand(len(encoded.numbers))  # that of new images
        if max(encoded.numbers) >= 0:  # else without asking the host
            levels = bank.levels[encoded.numbers]
        maps = bank.feedback.count(maps, reading.maps, levels[:, None, None])
        abnormality = bank.feedback.count(abnormality, reading.abnormality, levels)
    for k in np.flatnonzero(encoded.is_corrected):
        maps[k], abnormality[k] = 0.0, 0.0
    if logits is not None and bank.roi is not None:
        logits = torch.where(bank.roi, logits, _UNDAMAGED)
    return maps, -abnormality, logits


def read_distances(found, logits, bank):
    """Return a `Reading` of distances, and one of those that feedback raises, if any.

    Of large images the coarse scales are read as if these were all, and the score of
    the finest one, a power of which is a factor, comes from far fewer pixels: what is
    too small for coarse scales would be lost in a mean over as many as theirs.
    """
    details = bank.encoder.details
    coarse = found.take([i for i in bank.scales if i not in details])
    readings = []
    if coarse.distances:
        readings.append(_read_scales(coarse, logits, bank, bank.score_pixels))
    fine = found.take(details)
    if fine.distances:
        n_pixels = min(bank.encoder.detail_pixels, bank.score_pixels)
        readings.append(_read_scales(fine, None, bank, n_pixels))
    if len(readings) == 1:
        return readings[0]
    return [
        Reading(*(geometric_mean(x, _WEIGHTS) for x in zip(*pair, strict=True)))
        for pair in zip(*readings, strict=True)
    ]


def _read_scales(found, logits, bank, score_pixels):
    """Return the readings of some scales.

    With variations there are two maps, of distances as they are and in units of local
    normal variation; a pixel is the geometric mean of both, and the score of an image
    comes from the second alone, if that counts. With a comparison, pixels are
    multiplied by a power of the odds of damage, and the score is the geometric mean of
    those without it and with it: it tells small damage apart from what varies, and
    knows less of large changes.
    """
    distances = [found.distances]
    if found.near is not None:
        raise_them, near = bank.feedback.apply, found.near
        distances.append({i: raise_them(x, near[i]) for i, x in distances[0].items()})
    variation = found.variation if bank.weights[1] > 0 else None
    factors = [_make_maps(x, variation, bank) for x in distances]
    maps = [geometric_mean(x, bank.weights) for x in factors]
    deciding = [x[-1] for x in factors]
    abnormality = [mean_of_largest(x, score_pixels) for x in deciding]
    if logits is not None:
        odds = [torch.exp(bank.comparison_weight * logits)]
        # What a known defect raises counts, whatever the comparison takes it for.
        for raised in maps[1:]:
            is_raised = raised > _RAISED * maps[0]
            odds.append(torch.where(is_raised, odds[0].clamp(min=1), odds[0]))
        maps, deciding = (
            [x * y for x, y in zip(own, odds, strict=True)] for own in (maps, deciding)
        )
        compared = [mean_of_largest(x, score_pixels) for x in deciding]
        pairs = zip(abnormality, compared, strict=True)
        abnormality = [(x * y).sqrt() for x, y in pairs]
    return [Reading(*x) for x in zip(maps, abnormality, strict=True)]


def _make_maps(distances, variation, bank):
    """Return maps of distances and, with a variation, of these relative to it.

    In the same unit: where variation is large, both are the same, about.
    """
    maps = [_join_scales(distances, bank)]
    if variation is not None:
        relative = {i: x / variation[i] * bank.large[i] for i, x in distances.items()}
        maps.append(_join_scales(relative, bank))
    return maps


def _join_scales(distances, bank):
    dense = bank.encoder
    maps = [
        spread_scores(x, dense.patch_sizes[i], dense.strides[i], dense.image_size)
        for i, x in distances.items()
    ]
    weights = [dense.scale_weights[i] for i in distances]
    joined = join_maps(maps, weights)
    return joined if bank.roi is None else torch.where(bank.roi, joined, 0.0)


def spread_scores(scores, patch_size, stride, image_size):
    """Give every pixel the mean score of the patches that cover it.

    From scores of patches, (n, rows, cols), to maps, (n, height, width). Pixels that no
    patch covers take the value of the nearest covered pixel, so the largest value is
    always that of a covered one. Between the middles of patches that lie side by side,
    scores are interpolated: means would be blocks.
    """
    # A patch covers a rectangle, so the mean over patches is a mean over rows followed
    # by one over columns: two small matrix products.
    down, across = (
        _spread_axis(length, patch_size, stride, scores.device) for length in image_size
    )
    n = len(scores)
    # Expanded, so that every image has its own product and no other's shape matters.
    maps = torch.bmm(down.expand(n, -1, -1), scores)  # (n, height, cols)
    return torch.bmm(maps, across.T.expand(n, -1, -1))  # (n, height, width)


def find_covering(pixels, patch_size, stride):
    """Return the patches, (rows, cols), that pixels, (height, width), come from."""
    down, across = (
        _spread_axis(length, patch_size, stride, pixels.device)
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


# Never dropped: a CUDA graph reads where it was when that was recorded.
@functools.cache
def _spread_axis(length, patch_size, stride, device):
    """Weight of each patch in each pixel's score along an axis, (length, n_patches)."""
    starts = np.arange(0, length - patch_size + 1, stride)
    pixels = np.arange(length)
    if stride == patch_size:
        middles = starts + (patch_size - 1) / 2
        weights = [np.interp(pixels, middles, one) for one in np.eye(len(starts))]
        return torch.from_numpy(np.stack(weights, axis=1).astype(np.float32)).to(device)
    offsets = pixels[:, None] - starts  # (length, n_patches)
    covers = (offsets >= 0) & (offsets < patch_size)
    covered = np.flatnonzero(covers.any(axis=1))
    nearest = np.abs(pixels[:, None] - covered).argmin(axis=1)
    covers = covers[covered[nearest]]
    means = (covers / covers.sum(axis=1, keepdims=True)).astype(np.float32)
    return torch.from_numpy(means).to(device)
