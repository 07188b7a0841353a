"""Have images changed since fit? A test of a batch's scores against normal ones."""

from math import comb
from numbers import Real
from typing import NamedTuple

import numpy as np
from scipy.special import binom
from scipy.stats import ks_2samp
from sklearn.utils import check_consistent_length

from skpatchsvdd._utils import check_finite_scores

__all__ = ["DriftResult", "drift_test"]

# Once good parts do look different.
_WAY_OUT = (
    "If good parts look different now, as in another light or of another lot, take "
    "some as they come: skpatchsvdd calibrate sets the threshold by them, skpatchsvdd "
    "update adds them to the model."
)


class DriftResult(NamedTuple):
    """What a test of drift has found.

    Attributes
    ----------
    p_value : float
        Probability of a difference at least this large if nothing has changed, or more.
    statistic : float
        The largest difference, in [0, 1], between the fraction of the batch's scores
        and that of normal ones below any value; abnormal images set aside.
    drifted : bool
        Whether the p-value is at most the level asked for.
    verdict : str
        A few sentences that say so, what was left out, and what to do. The report and
        the live page show the same.
    """

    p_value: float
    statistic: float
    drifted: bool
    verdict: str


def drift_test(
    scores, new, groups=None, *, defect_fraction=0.2, level=0.01
) -> DriftResult:
    """Test whether the scores of a batch still look like those of normal images.

    Two one-sided Smirnov tests [1]_ compare the batch with the scores that the
    threshold comes from, and account for how many there are of both. Are the batch's
    scores lower? Its lowest ones, `defect_fraction` of them, are left out first: if no
    more images are abnormal, what is left is no lower than as many normal images, and
    the test errs on the safe side. Are they higher? Abnormal images can only hide that.
    The p-value is twice the smaller of the two.

    The fraction is fixed before the scores are seen: to leave out as many images as
    raise an alarm would hide the very drift that raises alarms. A batch with more
    defects is called drift, too, since scores cannot tell the two apart; the verdict
    then says to look at those images first.

    With groups the batch counts as one new group. The larger of the two differences is
    compared with that of every group to all others: with G groups the p-value is
    (1 + the number of groups that differ at least as much) / (G + 1). So with fewer
    than 99 groups nothing is called drift at the level 0.01; the verdict says whether
    the batch differs more than all of them.

    Parameters
    ----------
    scores : array-like of shape (n_images,)
        Scores of normal images, such as ``est.calibration_scores_``.
    new : array-like of shape (n_new,)
        Scores of the batch, most of whose images are normal.
    groups : array-like of shape (n_images,), default=None
        The group of each normal image. None if images are independent.
    defect_fraction : float in [0, 1), default=0.2
        Fraction of the batch that may be abnormal, at most.
    level : float in [0, 1), default=0.01
        The p-value up to which it is called drift.

    Returns
    -------
    result : DriftResult
        With `p_value`, `statistic`, `drifted` and a one-line `verdict`.

    References
    ----------
    .. [1] N. V. Smirnov, "On the estimation of the discrepancy between empirical curves
       of distribution for two independent samples", Bulletin mathématique de
       l'Université de Moscou, 1939.

    Examples
    --------
    >>> import numpy as np
    >>> from skpatchsvdd.drift import drift_test
    >>> scores = np.random.default_rng(0).normal(size=(3, 100))
    >>> drift_test(scores[0], scores[1]).drifted
    False
    >>> drift_test(scores[0], scores[2] - 2).drifted
    True
    """
    scores = check_finite_scores(scores, "scores")
    new = check_finite_scores(new, "new")
    _check_fraction(defect_fraction, "defect_fraction")
    _check_fraction(level, "level")
    kept = np.sort(new)[int(np.floor(defect_fraction * len(new))) :]
    if groups is not None:
        check_consistent_length(scores, groups)
        return _test_groups(scores, new, kept, np.asarray(groups), level)
    return _test_images(scores, new, kept, level)


def _test_images(scores, new, kept, level):
    # scipy counts paths, of which there are more than a float holds between large
    # samples; it would find out, and warn.
    is_countable = np.isfinite(binom(len(scores) + len(new), len(scores)))
    method = "auto" if is_countable else "asymp"
    low = ks_2samp(kept, scores, alternative="greater", method=method)
    high = ks_2samp(new, scores, alternative="less", method=method)
    is_low = low.pvalue <= high.pvalue
    found = low if is_low else high
    p_value = float(min(2 * found.pvalue, 1))
    verdict = _verdict(p_value, level, is_low, scores, new, kept)
    smallest = 2 / comb(len(scores) + len(kept), len(kept))
    if smallest > level:
        verdict = (
            f"Too few images to tell: {len(new)} against {len(scores)} cannot have a "
            f"p-value below {smallest:.2g}. Take more images."
        )
    return DriftResult(p_value, float(found.statistic), p_value <= level, verdict)


def _test_groups(scores, new, kept, groups, level):
    labels = np.unique(groups)
    n_groups = len(labels)
    if n_groups < 2:
        raise ValueError(f"groups must hold at least two groups, got {n_groups}.")
    low, high = _differences(kept, new, scores, groups)
    statistic = max(low, high)
    others = [_difference_of(label, scores, groups, len(kept)) for label in labels]
    n_alike = int(np.sum(np.array(others) >= statistic))
    p_value = (1 + n_alike) / (n_groups + 1)
    verdict = _verdict(p_value, level, low >= high, scores, new, kept)
    if p_value > level and n_alike == 0:
        verdict = (
            f"The batch differs more than any of the {n_groups} groups that set the "
            f"threshold, but a p-value below {p_value:.2g} takes more of them. Look at "
            "it: if it is normal, skpatchsvdd update --group adds it as a group of its "
            "own."
        )
    return DriftResult(p_value, statistic, p_value <= level, verdict)


def _difference_of(label, scores, groups, n_images):
    """Return by how much a group differs from all others, thinned to so many images."""
    inside = groups == label
    group = scores[inside]
    # A few images differ more than many do, by chance.
    group = group[np.linspace(0, len(group) - 1, min(len(group), n_images)).astype(int)]
    return max(_differences(group, group, scores[~inside], groups[~inside]))


def _differences(kept, new, scores, groups):
    """Return the largest differences of distributions: lower, and higher, than groups.

    Each group counts the same in the distribution of all.
    """
    _, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = 1 / (len(sizes) * sizes[inverse])
    values = np.sort(np.concatenate([scores, new]))
    all_groups = _distribution(scores, weights, values)
    low = _distribution(kept, 1 / len(kept), values) - all_groups
    high = all_groups - _distribution(new, 1 / len(new), values)
    return float(low.max()), float(high.max())


def _distribution(scores, weights, values):
    """Return the weight of the scores up to each value."""
    order = np.argsort(scores)
    weights = np.broadcast_to(weights, len(scores))[order]
    sums = np.append(0.0, np.cumsum(weights))
    return sums[np.searchsorted(scores[order], values, side="right")]


def _verdict(p_value, level, is_low, scores, new, kept):
    """Say what was found, for those who look at a page as for those who call this."""
    n_aside, aside = len(new) - len(kept), ""
    if n_aside:
        worst, were, they = f"{n_aside} most abnormal", "were", "they"
        if n_aside == 1:
            worst, were, they = "most abnormal", "was", "it"
        aside = f" The {worst} of the {len(new)} images {were} left out of this"
        aside += f", as {they} may be defective."
    if p_value > level:
        return f"No sign of drift, p = {p_value:.2g}.{aside}"
    more = "abnormal" if is_low else "normal"
    found = (
        f"The images have drifted: they look more {more} than those that set the "
        f"threshold, p = {p_value:.2g}."
    )
    if not is_low:
        return f"{found} Are they blurred, or darker? {_WAY_OUT}"
    n_lowest = int(np.sum(new < scores.min()))
    if n_lowest > n_aside:  # more than may be defective
        aside += (
            f" {n_lowest} of {len(new)} look more abnormal than all images that set "
            "the threshold: look at these first. If they are defective, nothing else "
            "need have changed, and they must not be learnt as normal."
        )
    return f"{found}{aside} {_WAY_OUT}"


def _check_fraction(value, name):
    if not isinstance(value, Real) or not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}.")
