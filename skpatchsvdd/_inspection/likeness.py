"""Whether images look as if they belonged together."""

import numpy as np

from skpatchsvdd._images import pixels_to_float
from skpatchsvdd._utils import warn

# Up to so many runs of so many consecutive images of X are looked at; with fewer images
# than the last number nothing can be said.
_N_RUNS, _RUN, _MIN_LOOKED_AT = 32, 4, 20

# Images look grouped if, for half of them, at most this fraction of all others looks
# more like them than the next one in X. It is 1/2 where the order of X means nothing.
# For tiles of one sheet and frames of one video less than 0.1 was measured, and 0.16 to
# 0.5 for pictures of single parts.
_NEAR = 1 / 8

# Pixels, along each axis, of the middle of an image that is looked at.
_LARGEST = 256

# Distances, in pixels, over which changes of brightness are measured: the texture.
_LAGS = (1, 2, 4, 8)


def warn_if_grouped(images):
    """Warn if images look like their neighbours in X, and no groups were given.

    Parameters
    ----------
    images : ImageStack
        In the order in which they came in.
    """
    if len(images) < _MIN_LOOKED_AT:
        return
    if nearness_of_neighbors(images) <= _NEAR:
        warn(
            "images look like the ones before and after them in X, as tiles of one "
            "sheet or frames of one video do. The threshold promises nothing for new "
            "sheets or videos unless fit is told which images belong together: pass "
            "groups, such as groups=[name.rsplit('_', 1)[0] for name in filenames]; on "
            "the command line --group-by folder, or name.",
        )


def nearness_of_neighbors(images):
    """Return how near images are to their neighbours in X, compared with all pairs.

    For each image the fraction of all other ones that look more like it than the next
    one in X does; the median over images. 1/2 where the order means nothing, 0 where
    every image looks most like its neighbour.
    """
    indices = _choose_runs(len(images))
    looks = [
        describe_image(x) for _, xs in images.take(indices).batches(16) for x in xs
    ]
    looks = np.array(looks)
    looks = looks[:, np.ptp(looks, axis=0) > 0]
    if looks.shape[1] == 0:
        return 0.5
    looks /= looks.std(axis=0)
    squares = (looks**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * looks @ looks.T
    np.fill_diagonal(distances, np.inf)
    pairs = np.flatnonzero(np.diff(indices) == 1)
    pairs = np.concatenate([[pairs, pairs + 1], [pairs + 1, pairs]], axis=1)
    nearer = distances[pairs[0]] < distances[pairs[0], pairs[1]][:, None]
    return float(np.median(nearer.sum(axis=1) / (len(indices) - 2)))


def _choose_runs(n_images):
    """Return the indices of all images, or of runs of neighbours spread over all."""
    if n_images <= _N_RUNS * _RUN:
        return np.arange(n_images)
    starts = np.linspace(0, n_images - _RUN, _N_RUNS).astype(int)
    return np.unique(starts[:, None] + np.arange(_RUN))


def describe_image(image):
    """Describe an image's light and texture by a few numbers.

    Mean and spread of every channel, and of the mean of the channels the logarithm of
    its mean change over a few distances along both axes.
    """
    starts = [max(length - _LARGEST, 0) // 2 for length in image.shape[:2]]
    window = tuple(slice(start, start + _LARGEST) for start in starts)
    x = np.ascontiguousarray(np.moveaxis(pixels_to_float(image[window]), 2, 0))
    numbers = [f(channel) for f in (np.mean, np.std) for channel in x]
    grey = x.mean(axis=0)
    for lag in _LAGS:
        for change in (grey[lag:] - grey[:-lag], grey[:, lag:] - grey[:, :-lag]):
            numbers.append(np.log(np.abs(change).mean() + 1e-4))
    return np.array(numbers, dtype=np.float64)
