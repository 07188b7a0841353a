"""The position of a patch in its image, as two more columns of its feature."""

import math
from contextlib import nullcontext

import numpy as np
import torch

from skpatchsvdd._utils import expand, halve_squares

# How much positions count where images show the same things in the same positions, and
# the fractions of normal patches with a neighbour in the same position from which on
# they begin to count, and count fully.
_FULL_WEIGHT, _BEGIN, _FULL = 10.0, 0.25, 0.75
# Two positions are the same if they are no further apart than this many pixels, or than
# one stride.
_SAME = 16
# Numbers in the sample of a bank that is looked at, the patches whose neighbours are
# searched in it, enough for a fraction to the percent, and how many at a time.
_SAMPLE, _N_LOOKED_AT, _CHUNK = 2**23, 1024, 128
# Images by which it is decided how much positions count, at most, and the bytes of
# their features.
_N_COMPARED, _COMPARED_BYTES = 64, 2**29
# Of images of more pixels, so many are compared at most, and only the patches of
# four tiles of each: all of them would take a CPU minutes.
_WHOLE_PIXELS, _N_SAMPLED = 2**22, 8


def find_unit(features, cells, stride, position_weight, rng):
    """Choose the unit in which positions are appended to the features of a bank.

    Features are those of two normal images at least, (n_images, rows, cols, D), of
    which patches with the numbers `cells` count. `position_weight` is the unit,
    compared with the typical distance of features; "auto" is 10 where the images show
    the same things in the same positions, and 0 where they do not.
    """
    if position_weight == 0:
        return 0.0
    distance, alignment = compare_images(features, cells, stride, rng)
    if position_weight == "auto":
        counted = (alignment - _BEGIN) / (_FULL - _BEGIN)
        position_weight = _FULL_WEIGHT * min(max(counted, 0.0), 1.0)
    return position_weight * distance


def compare_images(features, counted, stride, rng):
    """Find out how far, and where, normal patches find their like in other images.

    Of a random sample of the patches that are counted: the median distance to the
    nearest one of another image, and the fraction for which that lies in the same
    position, corrected for chance: 0 if positions are random, 1 if always the same.
    """
    n_images, rows, cols, n_features = features.shape
    each = max(_SAMPLE // n_features // n_images, 1)
    if each < len(counted):
        cells = counted[rng.randint(len(counted), size=(n_images, each))]
    else:
        cells = np.broadcast_to(counted, (n_images, len(counted)))
    cells = torch.tensor(cells, device=features.device)
    images = torch.arange(n_images, device=features.device)[:, None]
    sample = features.flatten(1, 2)[images, cells].flatten(0, 1)
    cells = cells.flatten()
    chosen = rng.permutation(len(sample))[:_N_LOOKED_AT]
    chosen = torch.from_numpy(chosen).to(features.device)
    distances, neighbors = _nearest_elsewhere(sample, chosen, len(sample) // n_images)
    reach = max(_SAME // stride, 1)
    same = [
        (part(cells[chosen]) - part(cells[neighbors])).abs() <= reach
        for part in (lambda x: x // cols, lambda x: x % cols)
    ]
    fraction = float((same[0] & same[1]).float().mean())
    chance = _fraction_within(rows, reach) * _fraction_within(cols, reach)
    alignment = (fraction - chance) / (1 - chance) if chance < 1 else 0.0
    return float(distances.median()), alignment


def _nearest_elsewhere(sample, chosen, n_patches):
    """Distance and index of the nearest row of another image, for chosen rows.

    Every image has `n_patches` rows, one after the other.
    """
    sample = sample - sample.mean(dim=0)  # keeps the expanded squares small
    half_squares = halve_squares(sample)
    image = torch.arange(len(sample), device=sample.device) // n_patches
    neighbors = []
    for rows in chosen.split(_CHUNK):
        x = expand(half_squares, sample[rows], sample.T)
        x.masked_fill_(image[rows, None] == image, torch.inf)
        neighbors.append(x.argmin(dim=1))
    neighbors = torch.cat(neighbors)
    return (sample[chosen] - sample[neighbors]).norm(dim=1), neighbors


def _fraction_within(n, reach):
    """Fraction of the pairs of n positions that are no further apart than `reach`."""
    position = np.arange(n)
    return float(np.mean(abs(position[:, None] - position) <= reach))


def find_units(encoder, images, position_weight, rng, report=None):
    """Choose for each scale the unit in which positions are appended to features.

    By a part of the images, two or more normal ones; see `find_unit`.
    """
    if position_weight == 0:
        return [0.0] * len(encoder.strides)
    choose, cells = choose_patches(encoder)
    if choose is list and encoder.reduction == 1:
        n_bytes = sum(4 * x.numel() for x in encoder.encode_stack(images.take([0])))
        n_compared = min(_N_COMPARED, max(_COMPARED_BYTES // n_bytes, 2), len(images))
    else:
        n_compared = min(_N_SAMPLED, len(images))
    spaced = np.linspace(0, len(images) - 1, n_compared).astype(int)
    label = "comparing positions in images"
    bar = nullcontext() if report is None else report.side_progress(label, n_compared)
    with bar as progress:
        scales = encoder.encode_stack(images.take(spaced), choose, progress)
    return [
        find_unit(x, counted, stride, position_weight, rng)
        for x, counted, stride in zip(scales, cells, encoder.strides, strict=True)
    ]


def choose_patches(encoder):
    """Return which tiles of images are compared, and which of their patches count.

    The first is what `DenseEncoder.encode` takes as `choose`. Patches are numbered, for
    each scale, in a grid of those of the tiles alone.
    """
    if math.prod(encoder.image_size) <= _WHOLE_PIXELS:
        return list, encoder.cells
    chosen = []
    for (rows, cols), grid, cells in zip(
        encoder.list_places(_take_two), encoder.grids, encoder.cells, strict=True
    ):
        numbers = rows[:, None] * grid[1] + cols
        chosen.append(np.flatnonzero(np.isin(numbers, cells)))
    if not all(map(len, chosen)):  # a region of interest that lies elsewhere
        return list, encoder.cells
    return _take_two, chosen


def _take_two(tiles):
    """Return two tiles of an axis, a third of the way from its ends, if it has more."""
    n = len(tiles)
    return tiles if n <= 2 else [tiles[n // 3], tiles[2 * n // 3]]
