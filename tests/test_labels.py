"""What y says of the images of a fit."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from trainings import first_losses

from skpatchsvdd import Training


@pytest.mark.parametrize(
    "make_y",
    [
        lambda data: data.labels,
        lambda data: data.labels.astype(float),
        lambda data: data.masks,
        lambda data: list(data.masks),
    ],
)
def test_images_known_to_be_abnormal_are_not_learnt_from(
    quick, untrained, mixed, make_y
):
    X, y, is_normal = mixed.images, make_y(mixed), mixed.labels == 1
    expected = clone(untrained).fit(X[is_normal])
    untrained.fit(X, y)
    assert untrained.bank_size_ == expected.bank_size_
    assert len(untrained.training_scores_) == is_normal.sum()
    assert len(untrained.defect_kinds_) == (~is_normal).sum()
    # The first step sees the same crops with the same weights. Only synthetic defects,
    # which are left out here, are filled with those in masks.
    quick.set_params(training=Training(batch_size=4, damage_weight=0))
    first = first_losses(clone(quick).fit(X[is_normal]))
    assert first_losses(quick.fit(X, y)) == pytest.approx(first, rel=1e-4)
    assert first_losses(clone(quick).fit(X)) != pytest.approx(first, rel=1e-4)


@pytest.mark.parametrize("wrap", [make_pipeline, lambda *steps: steps[-1]])
def test_fit_predict_does_not_learn_from_abnormal_images(quick, normal, rng, wrap):
    noise = rng.integers(0, 256, (2, 48, 48, 3), dtype=np.uint8)
    X = np.concatenate([noise[:1], normal, noise[1:]])
    y = np.r_[-1, np.ones(len(normal), dtype=int), -1]
    masks = np.broadcast_to((y == -1)[:, None, None], (len(y), 48, 48))
    est = wrap(FunctionTransformer(), quick.set_params(max_iter=0))
    for labels in (y, list(y), masks):
        np.testing.assert_array_equal(est.fit_predict(X, labels), y)
        assert len(quick.training_scores_) == len(normal)


def test_labels_in_a_column_of_objects_count(quick, normal):
    y = np.array([1, 1, 1, 1, 1, 1, -1, -1], dtype=object)
    assert len(quick.fit(normal, y).training_scores_) == 6
