"""scikit-learn's cross_val_predict, which changes y for decision_function."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skpatchsvdd.model_selection import NormalOnlyKFold

Y = np.array([1, 1, 1, 1, 1, 1, -1, -1, -1])


@pytest.fixture
def images(rng):
    return rng.random((9, 34, 34), dtype=np.float32)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: make_pipeline(identity(), x)])
def test_decisions_come_from_folds_of_normal_images(untrained, images, wrap):
    cv = NormalOnlyKFold(3)
    options = {"cv": cv, "method": "decision_function"}
    found = cross_val_predict(wrap(untrained), images, Y, **options)
    for train, test in cv.split(images, Y):
        expected = untrained.fit(images[train]).decision_function(images[test])
        np.testing.assert_allclose(found[test], expected, rtol=1e-5)
    labels = cross_val_predict(wrap(untrained), images, Y, cv=cv)
    np.testing.assert_array_equal(labels, np.where(found >= 0, 1, -1))


def identity():
    return FunctionTransformer()


def test_other_folds_are_refused_with_advice_that_applies(untrained, images):
    message = r"got 0\..*cross_val_predict.*NormalOnlyKFold"
    with pytest.raises(ValueError, match=message):
        cross_val_predict(untrained, images, Y, cv=3, method="decision_function")


def test_classes_are_the_labels_of_predict(untrained, images):
    with pytest.raises(NotFittedError):
        _ = untrained.classes_
    np.testing.assert_array_equal(untrained.fit(images).classes_, [-1, 1])
