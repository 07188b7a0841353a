"""Whether images look as if they belonged together."""

import functools
from typing import NamedTuple

import numpy as np

from skpatchsvdd._images import pixels_to_float
from skpatchsvdd._utils import warn

# Up to so many images are looked at, in as many runs of neighbours in X; with fewer
# images than the last number nothing can be said.
_N_IMAGES, _N_RUNS, _MIN_LOOKED_AT = 128, 8, 20

# Random orders that the order of X is compared with, and the largest p-value at which
# images look grouped: where the order means nothing, one in a hundred does.
_N_ORDERS, _SIGNIFICANT = 99, 0.01

# By how many standard deviations scores must shift for images to look grouped: of
# normally distributed ones 5% false alarms would become 17%. A trend may be certain and
# still harmless: the order of most folders of parts shows one, of up to 0.5. Chosen on
# the figures of benchmarks/bench_grouping.py, not on others.
_HARMFUL = 0.7

# The least spread of logarithms of scores that shifts are measured by, and the least
# score: copies have none.
_LEAST_SPREAD, _LEAST_SCORE = 0.05, 1e-3

# Pixels, along each axis, of the middle of an image that is looked at, and windows that
# it is cut into.
_LARGEST, _N_WINDOWS = 256, 4

# Distances, in pixels, over which changes of brightness are measured: the texture. No
# more than the last fraction of an image's side.
_LAGS, _LONGEST = (1, 2, 4, 8), 1 / 8

# Added to changes before logarithms are taken: less than a grey level.
_LEAST_CHANGE = 1e-3


class Grouping(NamedTuple):
    """What the order of images tells of groups.

    Attributes
    ----------
    shift : float
        By how many standard deviations images score higher if none of their neighbours
        in X is there to compare with, beyond what random orders make of it.
    p_value : float
        Of a permutation test that the order of X means nothing.
    """

    shift: float
    p_value: float

    @property
    def is_harmful(self):
        """Whether images look grouped so much that a threshold would not hold."""
        return self.p_value <= _SIGNIFICANT and self.shift >= _HARMFUL


def warn_if_grouped(images):
    """Warn if images look like their neighbours in X, and no groups were given.

    Parameters
    ----------
    images : ImageStack
        In the order in which they came in.
    """
    if len(images) >= _MIN_LOOKED_AT and measure_grouping(images).is_harmful:
        warn(
            "images look like the ones before and after them in X, as tiles of one "
            "sheet or frames of one video do. The threshold promises nothing for new "
            "sheets or videos unless fit is told which images belong together: pass "
            "groups, such as groups=[name.rsplit('_', 1)[0] for name in filenames]; on "
            "the command line --group-by folder, or name.",
        )


def measure_grouping(images):
    """Estimate what neighbours in X hide, and test whether it is chance.

    As in a fit, an image's score is the mean distance of its windows to the most
    similar window of another image. Then X is cut into runs of neighbours, and images
    are scored without those of their run. Where images belong together, scores rise:
    what the others of a group lend to the bank of a fit, it does not hold of a new
    group. They rise a little in random orders of the same images, too, as there are
    fewer images to compare with; that is subtracted, and how often a random order has
    as much is the p-value. Of eight runs and of four the larger rise counts.

    Parameters
    ----------
    images : ImageStack
        In the order in which they came in.

    Returns
    -------
    grouping : Grouping
    """
    taken = images.take(_choose_runs(len(images)))
    windows = [describe_windows(x) for _, xs in taken.batches(16) for x in xs]
    nearest = _compare_images(np.array(windows))
    rng = np.random.RandomState(0)
    orders = [np.arange(len(taken))]
    orders += [rng.permutation(len(taken)) for _ in range(_N_ORDERS)]
    shifts = np.array([_measure_shifts(nearest, order) for order in orders])
    shifts = (shifts - shifts[1:].mean(axis=0)).max(axis=1)
    # The order of X is one of those that have as much.
    return Grouping(float(shifts[0]), float(np.mean(shifts >= shifts[0])))


def _choose_runs(n_images):
    """Return the indices of all images, or of runs of neighbours spread over all."""
    if n_images <= _N_IMAGES:
        return np.arange(n_images)
    n_each = _N_IMAGES // _N_RUNS
    starts = np.linspace(0, n_images - n_each, _N_RUNS).astype(int)
    return (starts[:, None] + np.arange(n_each)).ravel()


def describe_windows(image):
    """Describe light and texture of an image's windows by a few numbers each.

    Mean and spread of every channel, and of the mean of the channels the logarithm of
    its mean change over a few distances along both axes, (n_windows, n_numbers).
    """
    starts = [max(length - _LARGEST, 0) // 2 for length in image.shape[:2]]
    part = tuple(slice(start, start + _LARGEST) for start in starts)
    x = np.moveaxis(pixels_to_float(image[part]), 2, 0).copy()
    grey = x.mean(axis=0)
    lags = [lag for lag in _LAGS if lag <= _LONGEST * min(grey.shape)]
    height, width = (length - max(lags, default=0) for length in grey.shape)
    here = grey[:height, :width]
    moved = [grey[lag : lag + height, :width] for lag in lags]
    moved += [grey[:height, lag : lag + width] for lag in lags]
    changes = np.empty((len(moved), height, width), dtype=x.dtype)
    for change, there in zip(changes, moved, strict=True):
        np.abs(np.subtract(there, here, out=change), out=change)
    means, squares = _pool(x), _pool(x * x)
    spreads = np.sqrt(np.maximum(squares - means**2, 0))
    return np.concatenate([means, spreads, np.log(_pool(changes) + _LEAST_CHANGE)]).T


def _pool(maps):
    """Return the means of maps in windows, (n_maps, n_windows)."""
    rows, columns = (_average_windows(length) for length in maps.shape[1:])
    means = rows @ (maps @ columns.T)
    return means.reshape(len(maps), len(rows) * len(columns))


@functools.cache
def _average_windows(length):
    """Return a matrix whose product with a line is the means of its windows."""
    n_windows = min(_N_WINDOWS, length)
    number = np.arange(length) * n_windows // length
    is_in = np.arange(n_windows)[:, None] == number
    return (is_in / is_in.sum(axis=1, keepdims=True)).astype(np.float32)


def _compare_images(windows):
    """Return the distance of each window to the nearest one of each image.

    Parameters
    ----------
    windows : ndarray of shape (n_images, n_windows, n_numbers)
        See `describe_windows`.

    Returns
    -------
    nearest : ndarray of shape (n_images, n_images, n_windows)
        Of each image, how far from it the windows of all images are, float32; infinite
        for its own ones.
    """
    n_images, n_windows, n_numbers = windows.shape
    x = windows.reshape(-1, n_numbers)
    x = x[:, np.ptp(x, axis=0) > 0]
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    half_squares = (x**2).sum(axis=1) / 2
    nearest = np.empty((n_images, len(x)), dtype=np.float32)
    for i in range(n_images):
        own = slice(i * n_windows, (i + 1) * n_windows)
        nearest[i] = (half_squares[own, None] - x[own] @ x.T).min(axis=0)
        nearest[i, own] = np.inf
    nearest = np.sqrt(np.maximum(2 * (nearest + half_squares), 0))
    return nearest.reshape(n_images, n_images, n_windows)


def _measure_shifts(nearest, order):
    """Return by how many standard deviations scores rise without neighbours.

    For runs of an eighth of an order, and of a quarter.
    """
    runs = np.array_split(order, _N_RUNS)
    run = np.empty(len(order), dtype=int)
    for number, images in enumerate(runs):
        run[images] = number
    by_run = np.stack([nearest[images].min(axis=0) for images in runs])
    scores = _score(by_run)
    spread = max(scores.std(), _LEAST_SPREAD)
    shifts = []
    for n_joined in (1, 2):
        is_own = np.arange(_N_RUNS)[:, None] // n_joined == run // n_joined
        others = np.where(is_own[:, :, None], np.inf, by_run)
        shifts.append((_score(others) - scores).mean() / spread)
    return shifts


def _score(distances):
    """Return logarithms of scores, from distances to images or runs of them."""
    return np.log(np.maximum(distances.min(axis=0).mean(axis=1), _LEAST_SCORE))
