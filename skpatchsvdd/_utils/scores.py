"""Checks of scores that users pass."""

import numpy as np

from skpatchsvdd._utils.warnings import column_or_1d


def check_finite_scores(scores, name):
    """Return scores as a float64 array, or raise if any is not finite or none is."""
    scores = column_or_1d(scores, dtype=np.float64)
    if len(scores) == 0 or not np.isfinite(scores).all():
        raise ValueError(
            f"{name} must hold finite scores of at least one image, got {scores!r}."
        )
    return scores
