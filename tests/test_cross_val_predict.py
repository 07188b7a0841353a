"""scikit-learn's cross_val_predict, which changes y for decision_function."""

import numpy as np
import pytest
from settings import SEED
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skpatchsvdd import PatchSVDD
from skpatchsvdd.model_selection import NormalOnlyKFold

Y = np.array([1, 1, 1, 1, 1, 1, -1, -1, -1])


@pytest.fixture
def images(rng):
    return rng.random((9, 34, 34), dtype=np.float32)


@pytest.fixture
def est():
    return PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        embedding_dim=4,
        max_iter=0,
        random_state=SEED,
    )


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: make_pipeline(identity(), x)])
def test_decisions_come_from_folds_of_normal_images(est, images, wrap):
    cv = NormalOnlyKFold(3)
    found = cross_val_predict(wrap(est), images, Y, cv=cv, method="decision_function")
    for train, test in cv.split(images, Y):
        expected = est.fit(images[train]).decision_function(images[test])
        np.testing.assert_allclose(found[test], expected, rtol=1e-5)
    labels = cross_val_predict(wrap(est), images, Y, cv=cv)
    np.testing.assert_array_equal(labels, np.where(found >= 0, 1, -1))


def identity():
    return FunctionTransformer()


def test_other_folds_are_refused_with_advice_that_applies(est, images):
    with pytest.raises(
        ValueError, match=r"got 0\..*cross_val_predict.*NormalOnlyKFold"
    ):
        cross_val_predict(est, images, Y, cv=3, method="decision_function")


def test_classes_are_the_labels_of_predict(est, images):
    with pytest.raises(NotFittedError):
        _ = est.classes_
    np.testing.assert_array_equal(est.fit(images).classes_, [-1, 1])
