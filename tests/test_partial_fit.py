import warnings

import numpy as np
import pytest
from settings import SEED
from sklearn.base import clone
from sklearn.utils._param_validation import InvalidParameterError

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

QUICK = {"encoder": "hierarchical", "embedding_dim": 8, "patch_size": 32}
QUICK |= {"max_iter": 0, "random_state": SEED}


@pytest.fixture
def images():
    return make_textures(12, image_size=64, random_state=SEED).images


def test_more_images_join_the_bank(images):
    est = PatchSVDD(**QUICK).set_params(inspection__position_weight=0)
    est.partial_fit(images[:8])  # the first call fits
    assert est.partial_fit(images[8:]) is est
    # Without training, and where places do not count, all images at once are the same.
    whole = clone(est).fit(images)
    assert est.bank_size_ == whole.bank_size_ == {32: 12 * 81}
    # Those of former images, too: they have been scored again.
    np.testing.assert_allclose(est.training_scores_, whole.training_scores_, rtol=1e-5)
    np.testing.assert_allclose(
        est.anomaly_map(images), whole.anomaly_map(images), rtol=1e-4
    )
    assert est.offset_ == est.training_scores_.min()
    np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)


def test_images_known_to_be_abnormal_do_not_join(images):
    est = PatchSVDD(**QUICK).fit(images[:8])
    est.partial_fit(images[8:], [1, -1, 1, -1])
    assert len(est.training_scores_) == 10
    np.testing.assert_array_equal(
        est.score_samples(images[[8, 10]]), est.training_scores_[8:]
    )
    assert len(est.defect_kinds_) == 2
    est.partial_fit(images[[9, 11]], [-1, -1])
    assert len(est.training_scores_) == 10


@pytest.mark.parametrize("training", ["dense", "paper"])
def test_more_images_are_scored_without_themselves(images, training):
    est = PatchSVDD(training=training, **QUICK)
    est.set_params(inspection__relative_weight=0).fit(images[:8])
    before = est.score_samples(images[8:])
    est.partial_fit(images[8:9])
    np.testing.assert_allclose(est.training_scores_[8], before[0], rtol=1e-5)
    # The others can only find nearer neighbours than before.
    assert (est.score_samples(images[9:]) >= before[1:] * (1 + 1e-5)).all()


def test_images_that_have_changed_become_normal(images):
    est = PatchSVDD(false_alarm_rate=0.15, **QUICK).fit(images[:6])
    darker = images // 2
    before = est.score_samples(darker[9:])
    est.partial_fit(darker[:9])
    assert (est.score_samples(darker[9:]) > before).all()
    assert (est.predict(darker[9:]) == 1).all()


@pytest.mark.wide
def test_the_bank_keeps_its_size(images):
    est = PatchSVDD(bank_size=100, **QUICK).fit(images[:8])
    assert est._fitted.indexes[0].places[:, 0].max() < 8
    est.partial_fit(images[8:] // 2)
    assert est.bank_size_ == {32: 100}
    assert est._fitted.indexes[0].places[:, 0].max() >= 8


def test_known_images_and_copies_are_left_out(images):
    est = PatchSVDD(**QUICK).fit(images[:8])
    est.partial_fit(images[4:8])
    assert len(est.training_scores_) == 8
    est.partial_fit(images[[8, 2, 8, 9, 9]])
    assert est.bank_size_ == {32: 10 * 81}
    assert len(est.training_scores_) == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [("bank_size", -5), ("false_alarm_rate", 3), ("neighbors", "x"), ("verbose", "x")],
)
@pytest.mark.parametrize("method", ["partial_fit", "join"])
def test_parameters_are_checked_again(images, method, name, value):
    est = PatchSVDD(**QUICK).fit(images[:8])
    before = dict(vars(est))
    est.set_params(**{name: value})
    with pytest.raises(InvalidParameterError, match=f"The '{name}' parameter"):
        getattr(est, method)(images[8:])
    assert dict(vars(est)) == {**before, name: value}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("device", None, "device must be 'auto'"), ("n_jobs", "a", "n_jobs must be None")],
)
def test_parameters_of_scoring_are_checked(images, name, value, message):
    est = PatchSVDD(**QUICK).fit(images[:8]).set_params(**{name: value})
    with pytest.raises(ValueError, match=message):
        est.predict(images)


def test_a_changed_false_alarm_rate_moves_the_threshold(images):
    est = PatchSVDD(**QUICK).fit(images[:8]).set_params(false_alarm_rate=0.5)
    est.partial_fit(images[8:])
    k = (len(est.training_scores_) + 1) // 2
    assert est.offset_ == np.sort(est.training_scores_)[k - 1]


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_warning_that_is_an_error_changes_nothing(images, method):
    est = PatchSVDD(**QUICK).fit(images[:8]).set_params(false_alarm_rate=0.001)
    before = dict(vars(est))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="needs at least 999 images"):
            getattr(est, method)(images[8:] // 2)
    assert vars(est) == before
