"""The threshold that labelled images decide, and the ranges of rates."""

import math
from numbers import Real

import numpy as np
from scipy.stats import beta

# How far a threshold stays away from a labelled score, as a fraction of it, where there
# is room: another picture of the same piece, or another processor, scores it a little
# differently.
_MARGIN = 0.01
# Of a hundred ranges of rates, so many hold the true one.
_CONFIDENCE = 0.95


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
