"""The threshold between normal and abnormal images, and p-values."""

import numpy as np

from skpatchsvdd._warnings import warn

# Products of a share and a number of images are rounded to this many digits.
_DIGITS = 9


def threshold_from_scores(scores, contamination, name="contamination"):
    """Choose the score below which an image is called abnormal.

    If a new image is as likely to take any rank among n normal ones, it is one of the k
    lowest with a probability of k / (n + 1). The threshold lies just above the k-th
    score, with the largest k for which that is at most `contamination`.

    Parameters
    ----------
    scores : ndarray of shape (n_images,)
        Scores, high for normal, of normal images that the bank does not hold.
    contamination : "auto" or float
        "auto" is just below the lowest score; a float is the share of new normal images
        that are called abnormal.
    name : str
        What the caller calls it.

    Returns
    -------
    offset : float
    """
    if contamination == "auto":
        return float(scores.min())
    n = len(scores)
    k = int(np.floor(np.round(contamination * (n + 1), _DIGITS)))
    if k == 0:
        n_needed = int(np.ceil(np.round(1 / contamination, _DIGITS))) - 1
        warn(
            f"{n} images are too few for {name}={contamination:g}, which takes "
            f"{n_needed} of them. The threshold is the lowest score: about one in "
            f"{n + 1} new normal images will be called abnormal.",
        )
        return float(scores.min())
    return float(np.nextafter(np.sort(scores)[k - 1], np.inf))


def p_values_from_scores(scores, new):
    """Return the share of normal images that score no higher than each new one.

    The new image counts as one of them, so that the share is never 0, and, for a normal
    image, at most a with a probability of at most a.

    Parameters
    ----------
    scores : ndarray of shape (n_images,)
        Scores of normal images that the bank does not hold.
    new : ndarray of shape (n_new,)
        Scores of new images.

    Returns
    -------
    p_values : ndarray of shape (n_new,)
    """
    n_lower = np.searchsorted(np.sort(scores), new, side="right")
    return (1 + n_lower) / (len(scores) + 1)
