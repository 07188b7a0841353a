import warnings

import numpy as np
import pytest

from skpatchsvdd.drift import drift_test


@pytest.mark.parametrize(("n", "m"), [(20, 10), (50, 200), (200, 30)])
def test_unchanged_images_seldom_drift(n, m):
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=n), rng.normal(size=m)) for _ in range(300)]
    check_false_alarms([drift_test(*pair).p_value for pair in pairs])


def check_false_alarms(p_values):
    for alpha in (0.01, 0.05, 0.1, 0.2, 0.3):
        bound = alpha + 2.5 * (alpha / len(p_values)) ** 0.5
        assert np.mean(np.array(p_values) <= alpha) <= bound


def test_without_defects_expected_p_values_are_near_uniform():
    pairs = np.random.default_rng(1).normal(size=(400, 2, 100))
    p_values = [drift_test(*pair, defect_fraction=0).p_value for pair in pairs]
    assert 0.12 < np.mean(np.array(p_values) <= 0.2) < 0.25


@pytest.mark.parametrize("size", [20, 100])
def test_defects_are_no_drift(size):
    rng = np.random.default_rng(2)
    n_drifted = 0
    for _ in range(200):
        new = rng.normal(size=size)
        new[: size // 5] -= 100
        n_drifted += drift_test(rng.normal(size=150), new).drifted
    assert n_drifted <= 5


def test_more_defects_than_allowed_are_drift():
    rng = np.random.default_rng(3)
    new = rng.normal(size=100)
    new[:60] -= 100
    assert drift_test(rng.normal(size=150), new).drifted
    assert not drift_test(rng.normal(size=150), new, defect_fraction=0.6).drifted


@pytest.mark.parametrize(("shift", "change"), [(-2, "abnormal"), (2, "normal")])
def test_a_shift_is_drift(shift, change):
    rng = np.random.default_rng(4)
    result = drift_test(rng.normal(size=150), rng.normal(size=40) + shift)
    assert result.drifted
    assert result.p_value < 0.01
    assert result.statistic > 0.4
    assert f"more {change} than" in result.verdict


@pytest.mark.parametrize(("n_low", "is_first"), [(63, True), (41, False), (0, False)])
def test_many_alarms_are_to_be_looked_at_before_any_joins(n_low, is_first):
    """Half of 83 images may be defective; the others are a little lower."""
    rng = np.random.default_rng(4)
    scores = rng.normal(size=150)
    new = np.quantile(scores, 0.05) + 0.01 * rng.normal(size=83)
    new[:n_low] = scores.min() - 1
    result = drift_test(scores, new, defect_fraction=0.5)
    assert result.drifted
    first = "63 of 83 look more abnormal than all images that set the threshold: "
    first += "look at these first"
    assert (first in result.verdict) == is_first
    assert "The 41 most abnormal of the 83 images were left out" in result.verdict
    assert "skpatchsvdd update" in result.verdict
    assert "skpatchsvdd calibrate" in result.verdict


def test_one_image_that_is_left_out_is_told_as_one():
    rng = np.random.default_rng(6)
    result = drift_test(rng.normal(size=12), rng.normal(size=8))
    assert "The most abnormal of the 8 images was left out of this" in result.verdict


def test_defects_do_not_hide_images_that_look_too_normal():
    rng = np.random.default_rng(5)
    new = rng.normal(size=50) + 3
    new[:10] -= 100
    assert drift_test(rng.normal(size=150), new).drifted


def test_few_images_tell_little():
    result = drift_test(np.zeros(8), [-1.0])
    assert not result.drifted
    assert "Too few images to tell: 1 against 8" in result.verdict


def test_no_warning_leaks_of_large_batches():
    rng = np.random.default_rng(8)
    scores, new = rng.normal(size=1000), rng.normal(size=500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drift_test(scores, new).p_value > 0.05
        assert drift_test(scores, new - 1).drifted


def hierarchical(rng, n_groups, n_images):
    shared = 2 * rng.normal(size=n_groups)
    return (shared[:, None] + rng.normal(size=(n_groups, n_images))).ravel()


def test_a_new_group_is_no_drift_where_groups_differ():
    rng = np.random.default_rng(6)
    groups = np.arange(30).repeat(8)
    by_groups, by_images = [], []
    for _ in range(150):
        scores, new = hierarchical(rng, 30, 8), hierarchical(rng, 1, 8)
        by_groups.append(drift_test(scores, new, groups).p_value)
        by_images.append(drift_test(scores, new).p_value)
    check_false_alarms(by_groups)
    assert np.mean(np.array(by_images) <= 0.05) > 0.1  # not independent


def test_groups_say_what_they_can_tell():
    rng = np.random.default_rng(7)
    groups = np.arange(8).repeat(10)
    result = drift_test(hierarchical(rng, 8, 10), np.full(20, -50.0), groups)
    assert result.p_value == pytest.approx(1 / 9)
    assert not result.drifted
    assert "more than any of the 8 groups that set" in result.verdict
    many = hierarchical(rng, 99, 3)
    assert drift_test(many, np.full(20, -50.0), np.arange(99).repeat(3)).drifted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": []}, "scores must hold finite scores"),
        ({"new": [np.nan]}, "new must hold finite scores"),
        ({"groups": ["a"]}, "at least two groups, got 1"),
        ({"groups": ["a", "b"]}, "inconsistent numbers"),
        *(({"level": x}, "level must be in") for x in (1, -0.1, "all", None)),
        ({"defect_fraction": 1}, "defect_fraction must be in"),
    ],
)
def test_bad_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        drift_test(**{"scores": [1.0], "new": [1.0]} | changes)
