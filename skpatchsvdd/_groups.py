"""Groups of images that are alike: which are set aside, and whether some look so."""

import numpy as np
from sklearn.utils import column_or_1d

from skpatchsvdd._images import pixels_to_float
from skpatchsvdd._warnings import warn

# Fraction of the groups that the encoder is not trained on. The threshold can promise
# no smaller rate than 1 / (1 + their number), and an encoder needs few images.
_SET_ASIDE = 1 / 2
# Images are trained on with at least this many.
_MIN_TRAINED = 2
# Images that are looked at, in runs of this many in the order of X; as many are needed
# to say anything.
_N_RUNS, _RUN, _MIN_LOOKED_AT = 32, 4, 20
# Images look grouped if, for half of them, at most this fraction of all others looks
# more like them than the next one in X. It is 1/2 where the order of X means nothing.
# For tiles of one sheet and frames of one video less than 0.1 was measured, and 0.16 to
# 0.5 for pictures of single parts.
_NEAR = 1 / 8
# Pixels, along each axis, of the middle of an image that is looked at.
_LARGEST = 256
_LAGS = (1, 2, 4, 8)


def check_groups(groups, n_images):
    """Return one label of a group for each image, as an array; None stays None."""
    if groups is None:
        return None
    if isinstance(groups, str) or not hasattr(groups, "__len__"):
        raise ValueError(
            "groups must hold a label, such as a number or a name, for each image, "
            f"got {groups!r}."
        )
    groups = column_or_1d(np.asarray(groups))
    if len(groups) != n_images:
        raise ValueError(
            "groups must hold one label for each image of X, got "
            f"{len(groups)} labels for {n_images} images."
        )
    if any(x is None or x != x for x in groups.tolist()):  # nan is not itself
        raise ValueError(
            "groups must hold a label for each image, got a missing value. Pass a "
            "label of its own for an image that belongs to no group."
        )
    return groups.astype(str) if groups.dtype.kind == "O" else groups


def check_count(groups):
    """Raise if images are all of one group."""
    if groups is not None and len(np.unique(groups)) < 2:
        raise ValueError(
            f"groups holds one group, {groups[0]!r}, and at least two are needed: one "
            "to train on, one to calibrate on. Pass images of more groups, or no "
            "groups."
        )


def number_owners(groups, former=None):
    """Return, for each image, the number of its group; without groups, its own."""
    labels = groups if former is None else np.concatenate([former, groups])
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    # In the order in which groups come in, so that more of them change no number.
    numbers = np.argsort(np.argsort(first))
    return numbers[inverse][len(labels) - len(groups) :]


def find_unseen(owners, is_seen):
    """Return the numbers of the groups of which no image has been seen, or raise."""
    unseen = np.setdiff1d(owners, owners[is_seen])
    if len(unseen) == 0:
        raise ValueError(
            "warm_start=True goes on from an encoder that has been trained on images "
            "of every group, so none is left to calibrate on. Pass images of a new "
            "group too, or warm_start=False."
        )
    return unseen


def choose_aside(owners, unseen, rng):
    """Choose the groups that the encoder is not trained on.

    Parameters
    ----------
    owners : ndarray of int of shape (n_images,)
        The number of each image's group.
    unseen : ndarray of int
        The groups to choose from.
    rng : RandomState
        Draws them.

    Returns
    -------
    aside : ndarray of int
        Numbers of groups.
    """
    sizes = np.bincount(owners)
    aside = rng.permutation(unseen)[: max(int(_SET_ASIDE * len(sizes)), 1)]
    if len(owners) - sizes[aside].sum() < _MIN_TRAINED:
        aside = np.setdiff1d(unseen, sizes.argmax())  # the largest is trained on
    if len(aside) == 0 or len(owners) - sizes[aside].sum() < _MIN_TRAINED:
        raise ValueError(
            f"groups leaves fewer than {_MIN_TRAINED} images to train on when one of "
            f"{len(sizes)} groups is set aside. Pass more images."
        )
    return aside


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
            "groups, such as groups=[name.rsplit('_', 1)[0] for name in filenames].",
        )


def nearness_of_neighbors(images):
    """Return how near images are to their neighbours in X, compared with all pairs.

    For each image the fraction of all other ones that look more like it than the next
    one in X does; the median over images. 1/2 where the order means nothing, 0 where
    every image looks most like its neighbour.
    """
    places = _choose_runs(len(images))
    looks = [describe_image(x) for _, xs in images.take(places).batches(16) for x in xs]
    looks = np.array(looks)
    spread = looks.std(axis=0)
    looks = looks[:, spread > 0] / spread[spread > 0]
    if looks.shape[1] == 0:
        return 0.5
    squares = (looks**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * looks @ looks.T
    np.fill_diagonal(distances, np.inf)
    pairs = np.flatnonzero(np.diff(places) == 1)
    pairs = np.concatenate([[pairs, pairs + 1], [pairs + 1, pairs]], axis=1)
    nearer = distances[pairs[0]] < distances[pairs[0], pairs[1]][:, None]
    return float(np.median(nearer.sum(axis=1) / (len(places) - 2)))


def _choose_runs(n_images):
    """Return the places of all images, or of runs of neighbours spread over all."""
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
