"""Warnings that point to the user's line, and checks that leave filters alone."""

import sys
import warnings

import numpy as np
import sklearn.utils

from skpatchsvdd._utils.threads import make_lock

# Whose frames lie between a user's call and a warning.
_BETWEEN = {"skpatchsvdd", "sklearn", "joblib"}
_CHECKING = make_lock()


class TrainingInterrupted(UserWarning):
    """An interrupt has ended a training early, and `fit` goes on with its weights.

    As an error, by a filter of warnings, it ends `fit`.
    """


class TrainingKept(UserWarning):
    """A `fit` that failed after its training keeps the trained weights."""


class TwinsFound(UserWarning):
    """Some images look like several pictures of one piece, and count as one."""


class SuspectsFound(UserWarning):
    """Some images that are learnt from look defective, or unlike all others."""


def warn(message, category=UserWarning):
    """Warn about the first line outside of this package and scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _BETWEEN:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_array(*args, **kwargs):
    """Call scikit-learn's check, one thread at a time.

    It changes warning filters, which are those of all threads, and sets them back.
    """
    with _CHECKING:
        return sklearn.utils.check_array(*args, **kwargs)


def column_or_1d(*args, **kwargs):
    """Call scikit-learn's function, one thread at a time, as `check_array`."""
    with _CHECKING:
        return sklearn.utils.column_or_1d(*args, **kwargs)


def check_finite_scores(scores, name):
    """Return scores as a float64 array, or raise if any is not finite or none is."""
    scores = column_or_1d(scores, dtype=np.float64)
    if len(scores) == 0 or not np.isfinite(scores).all():
        raise ValueError(
            f"{name} must hold finite scores of at least one image, got {scores!r}."
        )
    return scores
