"""The promise: of new normal images no more raise an alarm than `false_alarm_rate`.

Of n + 1 exchangeable images each is left out in turn, and the others are learnt from.
``python tests/test_promise.py`` prints how many of those left out raise an alarm.
"""

import copy
import functools
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import binom
from settings import SEED

from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd._calibration import Calibration
from skpatchsvdd._calibration.threshold import count_scores

pytestmark = pytest.mark.filterwarnings("ignore:.*")
# Images or groups of a collection, collections, and the share that may be called
# abnormal: many, so that few draws tell a rate from one that is 1.3 times as high.
N, N_DRAWS, RATE = 8, 14, 0.5


def find_bound(n_draws, rate, certainty=0.95):
    """Return the number of alarms that a rate 1.3 times as high would exceed.

    With `certainty` the promised rate does not, if draws are independent. Of those that
    leave out each image of a collection in turn, the number varies much less.
    """
    bound = binom.ppf(certainty, n_draws, rate)
    assert binom.sf(bound, n_draws, 1.3 * rate) > 0.9
    return bound


def make_images(n, rng, mark=None):
    """Return images of noise, some of them rougher, and some with a faint mark.

    Or all with one of strength `mark`, a defect.
    """
    roughness = 15 * np.exp(0.4 * rng.normal(size=(n, 1, 1)))
    images = 128 + roughness * rng.normal(size=(n, 36, 36))
    for image in images:
        i, j = rng.integers(4, 24, size=2)
        faint = 40 * (rng.random() < 0.2)
        image[i : i + 8, j : j + 8] += faint if mark is None else mark
    return images.clip(0, 255).astype(np.uint8)


def make_module():
    torch.manual_seed(SEED)
    return torch.nn.Conv2d(1, 4, 4, stride=4)


KINDS = {
    "module": lambda: {"encoder": make_module()},
    "raw": lambda: {"encoder": "raw", "patch_size": 32},
    "paper": lambda: {"encoder": "raw", "patch_size": 32, "training": "paper"},
    "random": lambda: {"encoder": "hierarchical", "patch_size": 32, "max_iter": 0},
    "trained": lambda: {
        "encoder": "hierarchical",
        "patch_size": 32,
        "max_iter": 2,
        "training": Training(batch_size=4),
    },
    "formulas": lambda: {"encoder": "formulas", "image_size": 48},
}
ROI = np.pad(np.ones((36, 18)), ((0, 0), (9, 9)))


def make_estimator(kind, **params):
    base = {"false_alarm_rate": RATE, "random_state": SEED, "embedding_dim": 8}
    return PatchSVDD(device="cpu", **base | KINDS[kind]() | params)


def learn(est, X, groups, features, told):
    """Fit an estimator on images that arrive as `features` say, and on feedback."""
    parts, defects = [np.arange(len(X))], {}
    if "later" in features or "join" in features:
        parts = np.array_split(parts[0], 3)
        n_first = [len(x) for x in parts][0]
        if groups is not None:  # whole groups
            parts = np.split(np.arange(len(X)), [n_first // 2 * 2, n_first * 2 // 2 * 2])

    def labels(i):
        return None if groups is None else groups[i]

    first, own = X[parts[0]], labels(parts[0])
    if "defects" in features:
        y = np.repeat([1, -1], [len(first), len(told["defects"])])
        if own is not None:
            own = np.append(own, np.full(len(told["defects"]), -1))
        defects, first = {"y": y}, np.concatenate([first, told["defects"]])
    est.fit(first, groups=own, **defects)
    if "later defects" in features:
        for image in told["defects"]:
            est.partial_fit(image[None], y=[-1])
    if "corrections" in features:
        est.partial_fit(told["harmless"], corrections=True)
    if "join" in features:
        copies = [copy.deepcopy(est) for _ in parts[1:]]
        for other, i in zip(copies, parts[1:], strict=True):
            other.partial_fit(X[i], groups=labels(i))
        return est.join(copies)
    for i in parts[1:]:
        est.partial_fit(X[i], groups=labels(i))
    return est


def count_alarms(kind, features, n_draws=N_DRAWS, n=N):
    """Return how many of `n_draws` * `n` left out images raise an alarm."""
    n_alarms = 0
    params = {}
    if "bank_size" in features:
        params["bank_size"] = 0.5
    if "roi" in features:
        params["roi"] = ROI if kind != "formulas" else None
    size = 2 if "groups" in features else 1
    for draw in range(n_draws):
        rng = np.random.default_rng([SEED, draw])
        X, groups = make_images(n * size, rng), None
        if size > 1:  # what the images of a group share
            groups = np.arange(n).repeat(size)
            light = rng.normal(size=n).repeat(size)[:, None, None]
            X = (X + 20 * light).clip(0, 255).astype(np.uint8)
        told = {"defects": make_images(2, rng, 60), "harmless": make_images(2, rng, 90)}
        est = make_estimator(kind, **params)
        if "calibrate" in features:
            learn(est, make_images(n, rng), None, features, told)
        for i in range(n):
            is_new = np.arange(len(X)) // size == i
            others = None if groups is None else groups[~is_new]
            if "calibrate" in features:
                est.calibrate(X[~is_new], groups=others)
            else:
                learn(est, X[~is_new], others, features, told)
            new = X[is_new][:1]
            is_alarm = est.predict(new)[0] == -1
            assert is_alarm == (est.p_values(new)[0] <= RATE)
            n_alarms += is_alarm
    return n_alarms


QUICK = [
    ("module", "groups, roi, defects"),
    ("paper", "defects"),
    ("raw", "bank_size, defects, later"),
    ("raw", "calibrate, defects, corrections"),
]
SLOW = [
    ("module", "none"),
    ("module", "defects, corrections"),
    ("module", "groups, join, bank_size, defects"),
    ("module", "roi, bank_size, later defects, corrections, later"),
    ("raw", "join, later defects, corrections"),
    ("raw", "groups, calibrate, defects, bank_size"),
    ("paper", "defects, bank_size, later"),
    ("paper", "groups, join, later defects"),
    ("random", "groups, later, later defects"),
    ("trained", "groups, defects"),
    ("formulas", "defects, corrections"),
]


@pytest.mark.parametrize(
    ("kind", "features"),
    QUICK + [pytest.param(*x, marks=pytest.mark.slow) for x in SLOW],
)
def test_no_more_images_raise_an_alarm_than_promised(kind, features):
    n_alarms = count_alarms(kind, features.split(", "))
    assert n_alarms <= find_bound(N * N_DRAWS, RATE)


def draw_scores(n, tail, rng):
    """Draw plain scores and, exchangeable as well, what known defects make of them."""
    if tail == "heavy":
        plain, gain = 1 + rng.pareto(2, size=n), 1 + rng.pareto(1, size=n)
    else:
        plain, gain = np.exp(0.2 * rng.normal(size=n)), np.ones(n)
    if tail == "light":
        gain += rng.exponential(0.3, size=n)
    if tail == "one like a defect":
        gain[rng.integers(n)] = 16.0
    return -plain, -plain * gain


@functools.cache
def simulate(n, k, tail, size=1, n_draws=2000):
    """Return how many new images raise an alarm, by their scores alone."""
    rng, n_alarms = np.random.default_rng(SEED), 0
    groups = np.arange(n).repeat(size) if size > 1 else None
    for _ in range(n_draws):
        plain, raised = draw_scores(n * size + 1, tail, rng)
        if size > 1:
            shared = np.append(rng.random(n).repeat(size), rng.random()) + 0.5
            plain, raised = plain * shared, raised * shared
        is_used = np.ones(n * size, dtype=bool)
        known = Calibration(plain[:-1], groups, is_used, k / (n + 1), raised[:-1])
        new = count_scores(plain[-1:], raised[-1:], known.levels[-1:])
        n_alarms += new[0] < known.offset()
    return n_alarms


TAILS = ["light", "heavy", "one like a defect"]
SIMULATED = [(9, 1), (9, 2), (19, 2)]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("n", "k"), SIMULATED)
def test_known_defects_keep_scores_exchangeable(n, k, tail):
    assert simulate(n, k, tail) <= find_bound(2000, k / (n + 1), 0.99)


@pytest.mark.parametrize("tail", TAILS)
def test_known_defects_keep_groups_exchangeable(tail):
    assert simulate(9, 2, tail, size=3) <= find_bound(2000, 2 / 10, 0.99)
