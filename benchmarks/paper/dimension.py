"""The intrinsic dimension of features, by which the paper compares encoders."""

import numpy as np
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state

# Fraction of the points, those with the largest ratios, of which only the number
# counts.
_TAIL = 0.1

# Features this near, in parts of their length, differ by rounding alone: by more than
# the last digit of float32, since it adds up over the layers of an encoder.
_SAME = 64 * np.finfo(np.float32).eps

# The error is about 1 / sqrt(n) of the dimension: a quarter of it with so few points.
_MIN_POINTS = 20


def intrinsic_dimension(features, *, n_samples=2000, random_state=None):
    r"""Estimate on how many coordinates features depend.

    The paper compares encoders by it: features of few dimensions lie neatly [1]_. Its
    text names no estimator, but defines the dimension as [2]_ does, where it is
    estimated from two neighbours [3]_; so it is here. Two neighbours are so near that
    neither the curvature of the set of features nor its density matters much. With the
    distances :math:`r_1 \le r_2` from a point to the nearest two others, and d the
    dimension,

    .. math:: P(r_2 / r_1 \le \mu) = 1 - \mu^{-d}.

    Instead of a line fitted to the logarithms of both sides, the estimate is the
    maximum likelihood one, without its bias. As there, the largest tenth of the n
    ratios is not trusted: of m ratios :math:`\mu_1 \le ... \le \mu_m` the value counts,
    of the others only that they are larger,

    .. math:: d = \frac{m - 1}{\sum_{i \le m} \log \mu_i + (n - m) \log \mu_m}.

    Parameters
    ----------
    features : array-like of shape (n, D) or (n_images, rows, cols, D)
        Features, such as `PatchSVDD.embed` gives them.
    n_samples : int, default=2000
        How many features to draw, as many from each image as from any other. Patches of
        an image that overlap are nearly the same patch, and make the estimate depend on
        the stride: where few are drawn from each image, few overlap. None takes all,
        which is slow for more than some ten thousand.
    random_state : int, RandomState instance or None, default=None
        Which ones are drawn.

    Returns
    -------
    dimension : float
        It errs by about ``dimension / sqrt(n_samples)`` at random, and is too low for
        high dimensions: 8.4 instead of 10 with 2000 points in a cube, nearly all of
        which are near its surface. Compare estimates from as many features.

    Notes
    -----
    Of features that differ by no more than the last digits of float32, as those of
    empty background do, one is kept: distances between them would be noise.

    References
    ----------
    .. [1] J. Yi and S. Yoon, "Patch SVDD: Patch-level SVDD for Anomaly Detection and
       Segmentation", Asian Conference on Computer Vision, 2020.
    .. [2] A. Ansuini, A. Laio, J. H. Macke and D. Zoccolan, "Intrinsic dimension of
       data representations in deep neural networks", Advances in Neural Information
       Processing Systems, 2019.
    .. [3] E. Facco, M. d'Errico, A. Rodriguez and A. Laio, "Estimating the intrinsic
       dimension of datasets by a minimal neighborhood information", Scientific Reports,
       2017.
    """
    features = group_by_image(np.asarray(features))
    rng = check_random_state(random_state)
    drawn = draw_evenly(features.shape[:2], n_samples, rng)
    return _dimension_of_ratios(_neighbor_ratios(features[drawn]))


def group_by_image(features):
    """Return features as an array of shape (n_images, n_positions, D)."""
    n_features = features.shape[-1]
    return features.reshape(len(features), -1, n_features)


def draw_evenly(shape, n_samples, rng):
    """Draw positions of (n_images, n_positions), as many of an image as of any other.

    Returns
    -------
    drawn : tuple of two ndarray of shape (n_drawn,)
        Images, and positions in them, in random order.
    """
    # One position of each image comes first, then a second one of each, and so on.
    turn = rng.random_sample(shape).argsort(axis=1) + rng.random_sample(shape)
    order = turn.argsort(axis=None)[:n_samples]
    return np.unravel_index(order, shape)


def _neighbor_ratios(points):
    """Return log(r2 / r1) of each point, ascending, once all copies are gone."""
    same, n_drawn = same_distance(points), len(points)
    points = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    while True:
        _check_enough(len(points), n_drawn)
        _, nearest = NearestNeighbors(n_neighbors=2).fit(points).kneighbors()
        # Anew: the search is after speed, and wrong in the last digits.
        distances = np.linalg.norm(points[:, None] - points[nearest], axis=2)
        earlier = nearest < np.arange(len(points))[:, None]
        is_copy = ((distances <= same) & earlier).any(axis=1)
        if not is_copy.any():
            distances.sort(axis=1)
            return np.sort(np.log(distances[:, 1] / distances[:, 0]))
        points = points[~is_copy]  # the first of its copies stays


def same_distance(points):
    """Return how far apart features are, at most, that differ by rounding alone."""
    return _SAME * np.sqrt(np.mean(np.sum(points**2, axis=1)))


def _check_enough(n_distinct, n_drawn):
    if n_distinct < _MIN_POINTS:
        raise ValueError(
            f"features hold fewer than {_MIN_POINTS} distinct points, of {n_drawn} "
            "drawn. Pass features of more patches, or a larger n_samples."
        )


def _dimension_of_ratios(log_ratios):
    """Estimate the rate of exponential values of which the largest are cut off."""
    n_cut = int(_TAIL * len(log_ratios))
    kept = log_ratios[: len(log_ratios) - n_cut]
    total = kept.sum() + n_cut * kept[-1]
    if total <= 0:
        raise ValueError(
            "features lie on a regular grid: each has two neighbours at the same "
            "distance, which tells no dimension. Pass features of other patches."
        )
    return float((len(kept) - 1) / total)
