"""The threshold between normal and abnormal images."""

import numpy as np


def threshold_from_scores(scores, contamination):
    """Choose the score below which an image is called abnormal.

    Parameters
    ----------
    scores : ndarray of shape (n_images,)
        Scores, high for normal, of normal images that the bank does not hold.
    contamination : "auto" or float
        "auto" is the lowest score; a float is that quantile.

    Returns
    -------
    offset : float
    """
    if contamination == "auto":
        return float(scores.min())
    return float(np.quantile(scores, contamination))
