"""From scores of normal or labelled images to thresholds, p-values and rates."""

import math
from numbers import Real

import numpy as np
import torch
from scipy.stats import beta
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
# How far a threshold stays away from a labelled score, as a fraction of it, where there
# is room: another picture of the same piece, or another processor, scores it a little
# differently.
_MARGIN = 0.01
# Of a hundred ranges of rates, so many hold the true one.
_CONFIDENCE = 0.95


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

    `name` is that of the parameter in warnings; without one, there is none. `n_more`
    more groups may be called abnormal.
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
    """Return scores in order, sums of fractions of groups of the k lowest, and G."""
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


def check_costs(miss_cost, alarm_cost):
    """Raise if the cost of a miss, or that of an alarm, is not a number above 0."""
    for name, cost in (("miss_cost", miss_cost), ("alarm_cost", alarm_cost)):
        is_free = name == "miss_cost" and cost == math.inf
        is_number = isinstance(cost, Real) and not isinstance(cost, bool)
        if not is_free and not (is_number and 0 < cost < math.inf):
            more = ", or infinity, with which none is missed" * (name == "miss_cost")
            raise ValueError(f"{name} must be a number above 0{more}, got {cost!r}.")


def tune_threshold(good, defective, former, miss_cost, alarm_cost):
    """Choose the score below which images are abnormal, by scores of labelled ones.

    The threshold with the least sum of costs; with an infinite `miss_cost`, the one
    with the fewest alarms of those with the fewest misses. Of thresholds that cost the
    same it is the one nearest to the `former` one, which needs no labels.
    """
    if miss_cost == math.inf:
        miss_cost, alarm_cost = len(good) + 1, 1
    labelled = np.unique([*good, *defective])
    ends = np.array([2 * min(former, labelled[0]), *labelled, 0.0])
    room = np.minimum(np.diff(ends) / 2, _MARGIN * -np.array([ends[:-1], ends[1:]]))
    # The point nearest to `former` between each two neighbours.
    offsets = np.clip(former, ends[:-1] + room[0], ends[1:] - room[1])
    n_misses = (defective >= offsets[:, None]).sum(axis=1)
    n_alarms = (good < offsets[:, None]).sum(axis=1)
    costs = miss_cost * n_misses + alarm_cost * n_alarms
    cheapest = offsets[np.isclose(costs, costs.min(), rtol=1e-9, atol=0)]
    return float(cheapest[np.abs(cheapest - former).argmin()])


def bound_rate(n_events, n):
    """Return the lowest and highest rate that go with a number of events among n.

    The range of Clopper and Pearson, by the binomial distribution.
    """
    low, high = (1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2
    least = beta.ppf(low, n_events, n - n_events + 1) if n_events > 0 else 0.0
    most = beta.ppf(high, n_events + 1, n - n_events) if n_events < n else 1.0
    return float(least), float(most)
