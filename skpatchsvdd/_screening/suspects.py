"""How plausible it is that an image is normal, by its score among others."""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtr

from skpatchsvdd._utils import SuspectsFound, warn

# With fewer images nothing is implausible.
MIN_IMAGES = 5
# The p-values below which an image is not vouched for by others; and below which one of
# those learnt from is named, of a hundred normal ones a fifth of an image.
IMPLAUSIBLE, STRANGE = 0.006, 0.002
# Scores of images that are all copies of each other are 0, and have no logarithm.
_TINY, _NARROWEST = 1e-12, 0.1
# The quantile that tells how far the scores of normal images spread.
_HIGH = 0.9


class Suspects(NamedTuple):
    """Images of a fit that may be defective, the least plausible ones first."""

    indices: np.ndarray  # their places in X
    p_values: np.ndarray
    is_set_aside: np.ndarray  # bool: whether they were not learnt from
    files: list  # their paths, or None


def measure_plausibility(scores, normal):
    """Return p-values of scores among those of images most of which are normal.

    By Student's t distribution, for of a few images the deviation is known roughly.
    """
    return stdtr(len(normal), -count_deviations(scores, normal))


def count_deviations(scores, normal):
    """Return how far scores are from the median of others, in deviations of these.

    Of logarithms, and with a deviation that the median and a higher quantile tell, so
    that a few defective images change little.
    """
    logs, normal = (np.log(np.maximum(-x, _TINY)) for x in (scores, normal))
    median, high = np.quantile(normal, [0.5, _HIGH])
    return (logs - median) / max((high - median) / ndtri(_HIGH), _NARROWEST)


def count_set_aside(contamination, n_images):
    """Return how many images a number for `contamination` sets aside, or raise."""
    if contamination > 0 and n_images < MIN_IMAGES:
        raise ValueError(
            f"contamination={contamination!r} needs at least {MIN_IMAGES} normal "
            f"images to tell which ones are unlike the others, got {n_images}. Pass "
            "more images, or contamination=0."
        )
    return int(contamination * n_images + 1e-9)


def list_suspects(p_values, is_set_aside, places, files):
    """Return the `Suspects` among images: what was set aside, or is strange."""
    is_strange = (p_values < STRANGE) & ((~is_set_aside).sum() >= MIN_IMAGES)
    chosen = np.flatnonzero(is_set_aside | is_strange)
    chosen = chosen[np.argsort(p_values[chosen], kind="stable")]
    return Suspects(
        np.asarray(places)[chosen],
        p_values[chosen],
        is_set_aside[chosen],
        [files[i] for i in chosen],
    )


def warn_of_suspects(suspects):
    """Say which images may be defective, and what was done about it."""
    for is_set_aside, what, way_out in (
        (
            True,
            "were set aside, and nothing was learnt from them",
            "Pass those that are normal to partial_fit, or contamination=0 to keep all",
        ),
        (
            False,
            "look defective, or unlike all others, and were learnt from all the same",
            "Look at them: forget(indices) takes out what is defective, and "
            "contamination='auto' sets such images aside",
        ),
    ):
        own = np.flatnonzero(suspects.is_set_aside == is_set_aside)
        if len(own):
            warn(
                f"{len(own)} of the images {what}: {_name(suspects, own)}. {way_out}.",
                SuspectsFound,
            )


def warn_of_newcomers(p_values, files, n_known):
    """Say which images look defective of those that are learnt besides others."""
    strange = np.flatnonzero(p_values < STRANGE)
    if len(strange) == 0 or n_known < MIN_IMAGES:
        return
    strange = strange[np.argsort(p_values[strange], kind="stable")]
    names = _join([files[i] or f"image {i} of X" for i in strange])
    warn(
        f"{len(strange)} of {len(p_values)} images look defective, or unlike those "
        f"learnt before, and are learnt all the same: {names}. Look at them: "
        "forget(indices) takes out what is defective.",
        SuspectsFound,
    )


def _name(suspects, chosen):
    pairs = zip(suspects.files, suspects.indices, strict=True)
    names = [file or f"X[{i}]" for file, i in pairs]
    return _join([names[i] for i in chosen])


def _join(names):
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
