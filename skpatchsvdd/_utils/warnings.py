"""Warnings that point to the line of the user's code that led to them."""

import sys
import warnings

# Whose frames lie between a user's call and a warning.
_BETWEEN = {"skpatchsvdd", "sklearn", "joblib"}


def warn(message, category=UserWarning):
    """Warn about the first line outside of this package and scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and _package_of(frame) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package_of(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]
