import numpy as np
import pytest
from settings import SEED

from skpatchsvdd._calibration import p_values_from_scores, threshold_from_scores


@pytest.mark.parametrize("n", [19, 20, 39, 100])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.5])
def test_new_normal_images_raise_as_many_alarms_as_promised(n, alpha):
    rng = np.random.default_rng(SEED)
    rates = []
    for _ in range(4000):
        scores = rng.normal(size=n + 1)
        offset = threshold_from_scores(scores[:-1], alpha)
        rates.append(scores[-1] - offset < 0)
    k = int(alpha * (n + 1) + 1e-9)
    assert np.mean(rates) == pytest.approx(k / (n + 1), abs=0.025)
    assert k / (n + 1) <= alpha


def test_too_few_images_for_a_small_share():
    scores = np.array([-3.0, -1.0, -2.0])
    with pytest.warns(UserWarning, match=r"3 images .* contamination=0.2.* takes 4 of"):
        assert threshold_from_scores(scores, 0.2) == -3
    assert threshold_from_scores(scores, 0.25) == np.nextafter(-3, 0)
    assert threshold_from_scores(scores, "auto") == -3


def test_p_values_count_the_images_that_score_no_higher():
    scores = np.array([-4.0, -3.0, -2.0, -1.0])
    new = np.array([-9.0, -4.0, -2.5, 0.0])
    np.testing.assert_allclose(p_values_from_scores(scores, new), [0.2, 0.4, 0.6, 1.0])


def test_p_values_of_normal_images_are_uniform():
    rng = np.random.default_rng(SEED)
    p_values = [
        p_values_from_scores(*np.split(rng.normal(size=20), [19]))[0]
        for _ in range(4000)
    ]
    shares, _ = np.histogram(p_values, bins=np.arange(21) / 20 + 0.025)
    np.testing.assert_allclose(shares / 4000, 0.05, atol=0.015)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
def test_threshold_and_p_values_agree(alpha):
    rng = np.random.default_rng(SEED + 1)
    scores, new = rng.normal(size=50), rng.normal(size=500)
    alarms = new < threshold_from_scores(scores, alpha)
    np.testing.assert_array_equal(alarms, p_values_from_scores(scores, new) <= alpha)
