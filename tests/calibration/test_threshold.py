import numpy as np
import pytest
from settings import SEED

from skpatchsvdd._calibration.calibration import (
    p_values_from_scores,
    threshold_from_scores,
)


@pytest.mark.parametrize("n", [19, 20, 39, 100])
@pytest.mark.parametrize("false_alarm_rate", [0.05, 0.1, 0.5])
def test_new_normal_images_raise_as_many_alarms_as_promised(n, false_alarm_rate):
    rng = np.random.default_rng(SEED)
    rates = []
    for _ in range(4000):
        scores = rng.normal(size=n + 1)
        offset = threshold_from_scores(scores[:-1], false_alarm_rate)
        rates.append(scores[-1] - offset < 0)
    k = int(false_alarm_rate * (n + 1) + 1e-9)
    assert np.mean(rates) == pytest.approx(k / (n + 1), abs=0.025)
    assert k / (n + 1) <= false_alarm_rate


def test_too_few_images_for_a_small_share():
    scores = np.array([-3.0, -1.0, -2.0])
    with pytest.warns(UserWarning, match=r"=0.2 needs .* 4 images .* got 3"):
        assert threshold_from_scores(scores, 0.2) == -3
    assert threshold_from_scores(scores, 0.25) == -3
    assert threshold_from_scores(scores, "auto") == -3


def test_p_values_count_the_images_that_score_no_higher():
    scores = np.array([-4.0, -3.0, -2.0, -1.0])
    new = np.array([-9.0, -4.0, -2.5, 0.0])
    np.testing.assert_allclose(p_values_from_scores(scores, new), [0.2, 0.4, 0.6, 1.0])


@pytest.mark.parametrize("false_alarm_rate", [0.2, 0.5])
@pytest.mark.parametrize("scores", [np.zeros(5), np.array([-2.0, -2.0, -2.0, -1.0])])
def test_equal_scores_are_no_alarms(scores, false_alarm_rate):
    offset = threshold_from_scores(scores, false_alarm_rate)
    assert p_values_from_scores(scores, scores[:1]) > false_alarm_rate
    assert not (scores < offset).any()
    assert (np.nextafter(scores.min(), -np.inf) < offset).all()


@pytest.mark.parametrize("false_alarm_rate", [0.05, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("most", [1, 6])
@pytest.mark.parametrize("n_values", [5, 1000])
def test_threshold_and_p_values_agree(false_alarm_rate, most, n_values):
    rng = np.random.default_rng(SEED + 1)
    groups = np.arange(30).repeat(rng.integers(1, most + 1, size=30))
    scores = rng.integers(n_values, size=len(groups)) / n_values
    new = rng.integers(n_values, size=500) / n_values
    offset = threshold_from_scores(scores, false_alarm_rate, groups)
    p_values = p_values_from_scores(scores, new, groups)
    np.testing.assert_array_equal(new < offset, p_values <= false_alarm_rate)
    if most == 1:  # groups of one image are no groups
        assert offset == threshold_from_scores(scores, false_alarm_rate)
        np.testing.assert_array_equal(p_values, p_values_from_scores(scores, new))


def test_p_values_of_groups_by_hand():
    scores = np.array([-5.0, -4.0, -3.0, -2.0, -1.0])
    groups = np.array(["a", "b", "a", "b", "b"])
    new = np.array([-9.0, -4.0, -2.5, 0.0])
    # Below: 1; then a half of a and a third of b; a and a third of b; all.
    expected = np.array([1, 1 + 1 / 2 + 1 / 3, 1 + 1 + 1 / 3, 3]) / 3
    p_values = p_values_from_scores(scores, new, groups)
    np.testing.assert_allclose(p_values, expected, atol=1e-9)


@pytest.mark.parametrize("false_alarm_rate", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("n_groups", [9, 19, 40])
def test_images_of_new_groups_raise_no_more_alarms_than_promised(
    n_groups, false_alarm_rate
):
    rng = np.random.default_rng(3)
    n_alarms = {"groups": 0, "images": 0}
    for _ in range(1000):
        sizes = rng.integers(1, 12, size=n_groups + 1)
        groups = np.arange(n_groups + 1).repeat(sizes)
        # What the images of a group share is larger than what tells them apart.
        scores = 3 * rng.normal(size=n_groups + 1)[groups] + rng.normal(size=sum(sizes))
        is_new = groups == n_groups
        known, new = scores[~is_new], scores[is_new][:1]
        by_groups = p_values_from_scores(known, new, groups[~is_new])
        n_alarms["groups"] += (by_groups <= false_alarm_rate).sum()
        n_alarms["images"] += (
            p_values_from_scores(known, new) <= false_alarm_rate
        ).sum()
    assert n_alarms["groups"] / 1000 <= false_alarm_rate + 0.02
    # Without groups a few new ones raise alarms too often, if there are few.
    if n_groups == 9 and false_alarm_rate == 0.05:
        assert n_alarms["images"] / 1000 > 0.07


def test_thirds_of_groups_add_up():
    # Three thirds of one group and none of 18 others: exactly 2 / 20.
    scores = np.concatenate([[-9.0, -8.0, -7.0], np.zeros(54)])
    groups = np.arange(19).repeat(3)
    assert p_values_from_scores(scores, np.array([-5.0]), groups) == 0.1
    assert threshold_from_scores(scores, 0.1, groups) == 0
