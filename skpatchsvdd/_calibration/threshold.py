"""From the scores of normal images to thresholds and p-values."""

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from skpatchsvdd._utils import warn

# Scores are tied if they differ by no more than this fraction: a few roundings.
_TIED = 1e-6
# Sums of fractions are rounded to this many digits before they are compared, so that
# ten times 0.1 is 1.
_DIGITS = 9
# How far above its level what resembles a known defect is raised at most, as a fraction
# of the level: what nobody has seen yet would be missed below a higher threshold.
_RISE = 0.25


def check_scores(scores):
    """Raise if scores are not finite, and warn if they are all the same."""
    if not np.isfinite(scores).all():
        raise FloatingPointError(
            "the scores of the training images are not finite. Pass a smaller "
            "Training(learning_rate=...), and images scaled to about 0..1."
        )
    if are_tied(scores):
        warn(
            "all training images score the same, so the scores say nothing. Are the "
            "images all the same, or is there a copy of each?",
            ConvergenceWarning,
        )


def are_tied(scores):
    """Whether more than two scores are all the same."""
    return len(scores) > 2 and np.ptp(scores) <= _TIED * np.abs(scores).max()


def warn_of_collapse(training):
    """Say that a training has collapsed and is undone."""
    other = ", training='dense'" if training == "paper" else ""
    warn(
        "training has collapsed all features to one point, and all training images "
        "score the same. Continuing with the weights before training. Pass a smaller "
        f"lam or Training(learning_rate=...){other}, or early_stopping=True.",
        ConvergenceWarning,
    )


def count_abnormality(plain, raised, level):
    r"""Return how abnormal images or pixels count that known defects may raise.

    The larger of both, the plain value a and the raised value r; above the level T of
    plain thresholds, a raised value counts as

    .. math:: T \left(1 + \frac{1 - T / r}{4}\right),

    so that known defects raise a threshold by a quarter at most.
    """
    beyond = level * (1 + _RISE * (1 - level / raised.clamp(min=1e-30)))
    return torch.maximum(plain, torch.where(raised > level, beyond, raised))


def count_scores(plain, raised, levels):
    """Return the scores that count: `count_abnormality` of minus scores, as arrays.

    In single precision, as images are inspected, so that both agree to the last bit.
    """
    scores = (torch.from_numpy(-x).float() for x in (plain, raised))
    counted = count_abnormality(*scores, torch.from_numpy(levels).float())
    return -counted.double().numpy()


def threshold_from_scores(
    scores, false_alarm_rate, groups=None, name="false_alarm_rate", n_more=0
):
    """Choose the score below which an image is called abnormal.

    Images that score less have p-values, by `p_values_from_scores`, of at most
    `false_alarm_rate`; those that score as much or more have larger ones. Without
    groups, it is the k-th lowest of n scores, with the largest k for which k / (n + 1)
    is at most `false_alarm_rate`. "auto" is the lowest score.

    `name` is that of the parameter in warnings; without one, there is none. `n_more` is
    how many groups more may be called abnormal.
    """
    order, sums, n_groups = _sum_fractions(scores, groups)
    allowed = 0
    if false_alarm_rate != "auto":
        allowed = np.round(false_alarm_rate * (n_groups + 1), _DIGITS)
        if allowed < 1 and name is not None:
            _warn_of_few(false_alarm_rate, name, n_groups, groups is not None)
    if allowed < 1 and n_more == 0:
        return float(scores.min())
    allowed = max(allowed, 1) + n_more
    if 1 + n_groups <= allowed:
        return 0.0
    # With ties, the sum at a score is that of the last one of its equals.
    ends = np.searchsorted(order, order, side="right")
    return float(order[np.argmax(1 + sums[ends] > allowed)])


def p_values_from_scores(scores, new, groups=None):
    r"""Return how unusual new images would be among normal ones.

    With G groups, of which group g has the :math:`n_g` scores :math:`s_{gi}`, a new
    score s has the p-value

    .. math:: \frac{1}{G + 1} \left(
        1 + \sum_g \frac{|\{i : s_{gi} \le s\}|}{n_g} \right).

    If groups are exchangeable, and images within a group are, a normal image of a new
    group has a p-value of at most a with a probability of at most a, for any a and any
    sizes of the groups [1]_ [2]_. Where each image is its own group, this is the
    fraction of images that score no higher, the new one counted among them.

    References
    ----------
    .. [1] R. Dunn, L. Wasserman and A. Ramdas, "Distribution-free prediction sets for
       two-layer hierarchical models", Journal of the American Statistical Association,
       2022.
    .. [2] Y. Lee, R. F. Barber and R. Willett, "Distribution-free inference with
       hierarchical data", arXiv:2306.06342, 2023.
    """
    order, sums, n_groups = _sum_fractions(scores, groups)
    return (1 + sums[np.searchsorted(order, new, side="right")]) / (n_groups + 1)


def _sum_fractions(scores, groups):
    """Return scores in order, sums of fractions of groups up to each, and G.

    ``sums[k]`` is that of the k lowest scores.
    """
    groups = np.arange(len(scores)) if groups is None else groups
    _, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(scores, kind="stable")
    sums = np.round(np.cumsum(1 / sizes[inverse][order]), _DIGITS)
    return scores[order], np.concatenate([[0.0], sums]), len(sizes)


def _warn_of_few(false_alarm_rate, name, n_groups, are_groups):
    n_needed = int(np.ceil(np.round(1 / false_alarm_rate, _DIGITS))) - 1
    unit = "groups" if are_groups else "images"
    whose = "images of new groups" if are_groups else "new normal images"
    more = " Pass images of more groups for a smaller fraction." if are_groups else ""
    warn(
        f"{name}={false_alarm_rate:g} needs at least {n_needed} {unit} to calibrate "
        f"on, got {n_groups}. The threshold is their lowest score: up to about one in "
        f"{n_groups + 1} {whose} will be called abnormal.{more}",
    )
