"""Thresholds, p-values, masks, and what is warned about when they are made."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skpatchsvdd._calibration.calibration import threshold_from_scores
from skpatchsvdd._images.arrays import check_images
from skpatchsvdd.model_selection import SyntheticDefectScorer


@pytest.mark.parametrize("training", ["dense", "paper"])
def test_training_images_are_scored_without_themselves(quick, normal, training):
    quick.set_params(training__method=training, inspection__relative_weight=0)
    est = quick.fit(normal)
    for i in range(len(normal)):
        others = np.delete(normal, i, axis=0)
        # The same encoder, but a bank without image i, and for image i, where a mean
        # is subtracted, the mean of the others.
        alone = copy.deepcopy(est)
        indexes = _indexes_of(est, others)
        alone._fitted = replace(
            alone._fitted, indexes=indexes, known=[], owners=None, variations=None
        )
        is_mean = training == "paper"
        shift = est.center_ - others.mean(axis=0) / 255 if is_mean else 0
        expected = alone.score_samples(normal[i : i + 1] / 255 + shift)[0]
        assert est.training_scores_[i] == pytest.approx(expected, rel=1e-3)
    assert (est.training_scores_ < 0).all()
    np.testing.assert_array_equal(est.score_samples(normal), est.training_scores_)


def _indexes_of(est, images):
    from skpatchsvdd._bank.collect import collect_banks
    from skpatchsvdd._bank.exact import ExactIndex

    stack = check_images(images)
    dense = est._on_device().encoder
    banks = collect_banks(dense, stack, est._fitted.units, None, np.random)
    return [ExactIndex(bank) for bank in banks]


def test_p_values_follow_the_training_scores(fitted, normal, mixed):
    p_values = fitted.p_values(mixed.images)
    assert p_values.shape == (len(mixed.images),)
    assert p_values.min() >= 1 / (1 + len(normal))
    order = np.argsort(fitted.score_samples(mixed.images))
    assert (np.diff(p_values[order]) >= 0).all()
    ranks = np.sort(fitted.p_values(normal))
    np.testing.assert_allclose(ranks, (2 + np.arange(len(normal))) / (1 + len(normal)))


def test_a_mask_is_empty_if_and_only_if_the_image_is_normal(normal, mixed, fitted):
    images = np.concatenate([normal, mixed.images])
    for false_alarm_rate in (None, 0.4):
        offset = fitted.offset_
        if false_alarm_rate is not None:
            offset = threshold_from_scores(fitted.training_scores_, false_alarm_rate)
        is_abnormal = fitted.score_samples(images) < offset
        masks = fitted.predict_mask(images, false_alarm_rate)
        np.testing.assert_array_equal(masks.any(axis=(1, 2)), is_abnormal)
    assert is_abnormal.any()
    assert not is_abnormal.all()


@pytest.mark.parametrize("image_size", [None, 33, 100])
@pytest.mark.parametrize("false_alarm_rate", ["auto", 0.4])
def test_an_image_is_abnormal_if_a_pixel_is(
    quick, normal, mixed, image_size, false_alarm_rate
):
    quick.set_params(image_size=image_size, false_alarm_rate=false_alarm_rate)
    quick.fit(normal)
    for images in (mixed.images, normal):
        masks = quick.predict_mask(images)
        assert masks.dtype == bool
        is_abnormal = quick.predict(images) == -1
        np.testing.assert_array_equal(masks.any(axis=(1, 2)), is_abnormal)


def test_a_larger_share_gives_larger_masks(fitted, normal):
    sizes = [fitted.predict_mask(normal, rate).sum() for rate in (0.3, 0.4, 0.5)]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    touched = fitted.predict_mask(normal, 0.5).any(axis=(1, 2))
    assert touched.sum() == (len(normal) + 1) // 2 - 1


def test_auto_threshold_is_the_lowest_training_score(quick, normal):
    assert (quick.fit_predict(normal) == 1).all()
    assert quick.offset_ == quick.training_scores_.min()
    assert (quick.predict(normal) == 1).all()


@pytest.mark.parametrize("false_alarm_rate", [0.125, 0.25, 0.5])
def test_false_alarm_rate_is_the_share_called_abnormal(quick, normal, false_alarm_rate):
    quick.set_params(false_alarm_rate=false_alarm_rate)
    labels = quick.fit_predict(normal)
    assert labels.dtype.kind == "i"
    # All below the k-th: another image that scores as it does raises no alarm.
    assert (labels == -1).sum() == false_alarm_rate * len(normal) - 1
    np.testing.assert_array_equal(labels, quick.predict(normal))


def test_a_mask_warns_of_its_own_parameter(fitted, mixed):
    message = "false_alarm_rate=0.01 needs at least 99 images"
    with pytest.warns(UserWarning, match=message) as caught:
        fitted.predict_mask(mixed.images[:1], false_alarm_rate=0.01)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "call",
    [
        lambda est, X: clone(est).fit(X),
        lambda est, X: est.score_samples(X),
        lambda est, X: est.predict(X),
        lambda est, X: est.p_values(X),
        lambda est, X: est.predict_mask(X),
        lambda est, X: make_pipeline(est).predict(X),
        lambda est, X: GridSearchCV(
            est, {"lam": [0.3]}, scoring=SyntheticDefectScorer(1), cv=2
        ).fit(X),
    ],
)
def test_warnings_point_to_the_line_of_the_call(fitted, normal, call):
    with pytest.warns(UserWarning, match="are taken as they are") as caught:
        call(fitted, normal * 1.0)
    assert {warning.filename for warning in caught} == {__file__}


def test_scores_that_are_not_finite_are_an_error(quick, normal):
    quick.set_params(max_iter=1, training__learning_rate=1e30)
    with pytest.raises(FloatingPointError, match=r"not finite.*learning_rate"):
        quick.fit(normal)
    assert not hasattr(quick, "offset_")


def test_images_of_a_single_patch_are_warned_about(quick, normal):
    with pytest.warns(UserWarning, match="hold a single patch.*max_iter=0"):
        quick.fit(normal[:, :32, :32])
