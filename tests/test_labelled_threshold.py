"""Thresholds that labelled images decide, or a person."""

import itertools
import math
import pickle

import numpy as np
import pytest
from conftest import make_untrained
from settings import SEED
from sklearn.utils import Bunch

from skpatchsvdd import load
from skpatchsvdd._calibration.labelled import bound_rate, tune_threshold
from skpatchsvdd.datasets import make_textures

COSTS = [(math.inf, 1.0), (10.0, 1.0), (1.0, 1.0), (0.5, 3.0)]


def find_plainly(good, defective, former, miss_cost, alarm_cost):
    """Return the costs of the best threshold, and how near to `former` it can be.

    By trying a fine grid of thresholds, one after the other.
    """
    grid = [*np.linspace(2 * min([former, *good, *defective]), 0, 601), former]
    best = None
    for offset in grid:
        n_misses = sum(x >= offset for x in defective)
        n_alarms = sum(x < offset for x in good)
        if miss_cost == math.inf:
            cost = n_misses, n_alarms
        else:
            cost = miss_cost * n_misses + alarm_cost * n_alarms, 0
        if best is None or (cost, abs(offset - former)) < best:
            best = cost, abs(offset - former)
    return best


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("former", [-0.3, -1.0, -2.5])
def test_the_rule_is_that_of_a_slow_search(costs, former):
    rng = np.random.default_rng(SEED)
    for n_good, n_defective in itertools.product((0, 1, 4, 9), (1, 3, 6)):
        # Multiples of a quarter: there are ties, and the grid reaches all between.
        good = -rng.integers(1, 8, n_good) / 4
        defective = -rng.integers(3, 12, n_defective) / 4
        offset = tune_threshold(good, defective, former, *costs)
        (cost, more), distance = find_plainly(good, defective, former, *costs)
        n_misses, n_alarms = (defective >= offset).sum(), (good < offset).sum()
        if costs[0] == math.inf:
            assert (n_misses, n_alarms) == (cost, more) == (0, more)
        else:
            assert costs[0] * n_misses + costs[1] * n_alarms == pytest.approx(cost)
        # A hundredth away from labelled scores, that is all.
        assert abs(offset - former) == pytest.approx(distance, abs=0.05)
        others = np.abs(offset / np.array([*good, *defective]) - 1)
        assert others.min() > 0.0099


@pytest.mark.parametrize(
    ("good", "defective", "expected"),
    [
        ([-0.5], [-3.0], -1.0),  # the model's threshold is right about all: it stays
        ([-0.5], [-0.8], -0.8 * 0.99),  # one would be missed
        ([-1.5], [-3.0], -1.5 * 1.01),  # one would raise an alarm
        ([-1.5], [-0.8], -0.8 * 0.99),  # they contradict each other: none is missed
        ([-0.5], [-0.501], -0.5005),  # no room: the middle
        ([], [-0.8], -0.8 * 0.99),
        ([-0.5], [0.0], -1.0),  # which no threshold finds
    ],
)
def test_none_is_missed_by_hand(good, defective, expected):
    good, defective = np.array(good), np.array(defective)
    offset = tune_threshold(good, defective, -1.0, math.inf, 1.0)
    assert offset == pytest.approx(expected, rel=1e-12)


def test_the_range_of_a_rate_is_that_of_the_binomial_distribution():
    # As tables of Clopper and Pearson have it; the rule of three for none of 30.
    assert bound_rate(0, 30) == (0.0, pytest.approx(1 - 0.025 ** (1 / 30)))
    assert bound_rate(30, 30) == (pytest.approx(0.025 ** (1 / 30)), 1.0)
    assert bound_rate(5, 20) == pytest.approx((0.0866, 0.4910), abs=5e-5)
    assert bound_rate(0, 0) == (0.0, 1.0)


@pytest.fixture(scope="module")
def estimator(normal):
    return pickle.dumps(make_untrained().fit(normal))


@pytest.fixture
def est(estimator):
    return pickle.loads(estimator)


@pytest.fixture(scope="module")
def labelled():
    """Six good images and four with a hole, the last of which is slight."""
    images = make_textures(10, image_size=48, random_state=SEED + 1).images
    for image, value in zip(images[6:], (0, 10, 20, 30), strict=True):
        image[10:30, 10:30] = value
    fresh = make_textures(4, image_size=48, random_state=SEED + 2).images
    return Bunch(images=images, labels=np.array([1] * 6 + [-1] * 4), fresh=fresh)


def test_labels_set_the_threshold_and_facts_say_what_that_means(est, labelled):
    former, scores = est.offset_, est.score_samples(labelled.images)
    good, defective = scores[:6], scores[6:]
    assert defective.max() < good.min()
    est.fix_threshold(2 * defective.min())  # the former threshold does not matter
    assert (est.predict(labelled.images) == 1).all()
    names = ["good"] * 6 + ["hole"] * 4
    facts = est.tune_threshold(labelled.images, names)
    assert est.offset_ == est.fixed_threshold_ == facts.threshold
    assert facts.threshold == tune_threshold(good, defective, former, math.inf, 1.0)
    np.testing.assert_array_equal(facts.scores, scores)
    np.testing.assert_array_equal(est.predict(labelled.images), labelled.labels)
    assert (facts.n_misses, facts.n_defective) == (facts.n_alarms, 4) == (0, 4)
    assert facts.alarm_range == bound_rate(0, facts.n_good) == bound_rate(0, 6)
    assert facts.miss_range == bound_rate(0, 4)
    below = (est.calibration_scores_ < est.offset_).sum()
    assert facts.false_alarm_rate == pytest.approx((below + 1) / 9)
    assert facts.false_alarm_range == pytest.approx(bound_rate(below, 8))


def test_it_is_near_that_of_a_rate_that_was_set_since(est, labelled):
    former = est.offset_
    est.set_params(false_alarm_rate=0.4)
    by_rate = pickle.loads(pickle.dumps(est)).fix_threshold(None).offset_
    facts = est.tune_threshold(labelled.images, labelled.labels)
    scores = facts.scores[:6], facts.scores[6:]
    assert facts.threshold == tune_threshold(*scores, by_rate, math.inf, 1.0)
    assert facts.threshold != tune_threshold(*scores, former, math.inf, 1.0)


@pytest.mark.parametrize(("miss_cost", "alarm_cost"), [(1.5, 1), (2.5, 1), (2.5, 2)])
def test_costs_decide_what_is_missed(est, labelled, miss_cost, alarm_cost):
    # Three good images are as odd as one of the defects, and the other is not at all.
    labels = np.array([1, 1, -1, 1, 1, 1, 1, 1, 1, -1])
    with pytest.warns(UserWarning, match="No threshold is right"):
        facts = est.tune_threshold(
            labelled.images, labels, miss_cost=miss_cost, alarm_cost=alarm_cost
        )
    found = est.predict(labelled.images)
    assert facts.n_misses == (found[labels == -1] == 1).sum()
    assert facts.n_alarms == (found[labels == 1] == -1).sum()
    costs = [
        miss_cost * (facts.scores[labels == -1] >= offset).sum()
        + alarm_cost * (facts.scores[labels == 1] < offset).sum()
        for offset in [*facts.scores, 0]
    ]
    assert miss_cost * facts.n_misses + alarm_cost * facts.n_alarms == min(costs)
    with pytest.warns(UserWarning, match="No threshold is right"):
        facts = est.tune_threshold(labelled.images, labels)
    assert facts.n_misses == 0 < facts.n_alarms


def test_a_range_counts_groups(normal):
    est = make_untrained().fit(normal, groups=np.arange(8) // 2)
    scores = np.sort(est.calibration_scores_)
    known = est._calibration
    assert known.alarm_range(-1.0) == bound_rate(0, 4)
    assert known.alarm_range(0.0) == bound_rate(4, 4)
    # One image of the two of a group.
    found = known.alarm_range(scores[:2].mean())
    assert found == pytest.approx(bound_rate(0.5, 4))
    assert 0 < found[0] < 1 / 8 < found[1]


def test_contradictions_are_said_by_name(est, normal, labelled):
    images = [*labelled.images, labelled.images[0]]
    with pytest.warns(UserWarning, match="labelled|contradict") as warned:
        est.tune_threshold(images, [*labelled.labels, -1])
    both, odd = (str(x.message) for x in warned)
    assert both.startswith("image 0 of X is labelled good, and defective as well.")
    assert "image 10 of X is defective and scores" in odd
    assert "of 6 good images score no higher" in odd
    est.partial_fit(labelled.images[[6, 0]], [-1, 1], corrections=True)
    images = [labelled.images[0], normal[0], labelled.images[6]]
    with pytest.warns(UserWarning, match="labelled|contradict") as warned:
        est.tune_threshold(images, [-1, -1, 1])
    first, second, _ = (str(x.message) for x in warned)
    assert first.startswith("image 2 of X is labelled good, and known as defective.")
    assert second.startswith("image 0 of X, with 1 more, is labelled defective, and")


def test_a_person_fixes_the_threshold_and_undoes_it(est, normal):
    former, before = est.offset_, est.training_scores_
    assert est.fixed_threshold_ is None
    assert est.fix_threshold(2 * former).offset_ == est.fixed_threshold_ == 2 * former
    np.testing.assert_array_equal(est.training_scores_, before)
    assert (est.predict(normal) == 1).all()
    est.fix_threshold(np.float32(0))
    assert (est.offset_, est.fixed_threshold_) == (0, 0)
    assert (est.predict(normal) == -1).all()
    est.fix_threshold(None)
    assert (est.offset_, est.fixed_threshold_) == (former, None)
    # Another rate takes the place of a threshold that is fixed.
    est.fix_threshold(-1.0).set_params(false_alarm_rate=0.3).fix_threshold(None)
    assert est.offset_ == np.sort(before)[1]  # 2 of 8 + 1


def learn(est, images):
    est.partial_fit(images[:2])


def learn_defect(est, images):
    masks = np.zeros((1, 48, 48), dtype=bool)
    masks[0, 10:30, 10:30] = True
    est.partial_fit(images[6:7], [-1], masks=masks)


def correct(est, images):
    est.partial_fit(images[2:3], corrections=True)


def correct_similar(est, images):
    est.partial_fit(images[3:4], corrections="similar")


def join(est, images):
    other = pickle.loads(pickle.dumps(est)).fix_threshold(-9.0)
    est.join([other.partial_fit(images[4:5])])


CHANGES = [learn, learn_defect, correct, correct_similar]


@pytest.mark.parametrize("first", range(4))
def test_a_threshold_stays_whatever_is_learnt_until_calibration(
    est, labelled, tmp_path, first
):
    images, fixed = labelled.images, 1.1 * est.offset_
    order = [join, *CHANGES[first:], *CHANGES[:first]]
    order.insert(first, lambda est, images: est.fix_threshold(fixed))
    for i, change in enumerate(order):
        change(est, images)
        assert est.fixed_threshold_ == (fixed if i >= first else None)
        assert est.offset_ == fixed or i < first
    est.save(tmp_path / "part.model")
    for again in (load(tmp_path / "part.model"), pickle.loads(pickle.dumps(est))):
        assert again.offset_ == again.fixed_threshold_ == fixed
        again.partial_fit(images[5:6])
        assert again.offset_ == fixed
        free = again.fix_threshold(None).offset_
        assert free == again.calibration_scores_.min() != fixed
    # What calibrates sets another threshold, which can be fixed and freed as well.
    est.calibrate(labelled.fresh)
    assert est.fixed_threshold_ is None
    calibrated = est.offset_
    assert calibrated == est.calibration_scores_.min()
    est.fix_threshold(fixed).partial_fit(images[5:6])
    assert est.offset_ == fixed
    assert len(est.calibration_scores_) == 4
    est.calibrate(None)
    assert est.offset_ == est.training_scores_[est.calibrates_].min()


def test_all_that_reads_the_threshold_reads_the_fixed_one(est, labelled):
    scores = est.score_samples(labelled.images)
    est.fix_threshold(float(np.median(scores)))
    labels = np.where(scores >= est.offset_, 1, -1)
    assert (labels == 1).sum() == 5
    np.testing.assert_array_equal(est.predict(labelled.images), labels)
    np.testing.assert_allclose(
        est.decision_function(labelled.images), scores - est.fixed_threshold_
    )
    found = est.inspect(labelled.images)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal([x.any() for x in found.masks], labels == -1)


@pytest.mark.parametrize(
    ("y", "costs", "words"),
    [
        ([1, 1], {}, "at least one image abnormal"),
        (None, {}, "at least one image abnormal"),
        ([1, 0], {}, "y must hold 1 for normal and -1"),
        ([1, -1], {"miss_cost": 0}, "miss_cost must be a number above 0, or infinity"),
        ([1, -1], {"miss_cost": "1"}, "miss_cost must be .* got '1'"),
        ([1, -1], {"miss_cost": math.nan}, "miss_cost must be .* got nan"),
        ([1, -1], {"alarm_cost": math.inf}, "alarm_cost must be a number above 0, got"),
        ([1, -1], {"alarm_cost": True}, "alarm_cost must be .* got True"),
    ],
)
def test_bad_labels_and_costs_change_nothing(est, normal, y, costs, words):
    before = est.offset_
    with pytest.raises(ValueError, match=words):
        est.tune_threshold(normal[:2], y, **costs)
    assert (est.offset_, est.fixed_threshold_) == (before, None)


@pytest.mark.parametrize("score", [0.1, -math.inf, math.nan, "-1", True, [-1.0]])
def test_scores_that_cannot_be_thresholds_are_refused(est, score):
    before = est.offset_
    with pytest.raises(ValueError, match="score must be a finite number of at most 0"):
        est.fix_threshold(score)
    assert (est.offset_, est.fixed_threshold_) == (before, None)
