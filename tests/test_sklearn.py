"""scikit-learn's own checks, and life inside its pipelines and searches."""

import functools

import numpy as np
import pytest
from settings import SEED
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler
from sklearn.utils.estimator_checks import (
    estimator_checks_generator,
    parametrize_with_checks,
)
from sklearn.utils.validation import check_is_fitted, validate_data

from skpatchsvdd import PatchSVDD, Training


class RowPatchSVDD(PatchSVDD):
    """Reads each row, whatever its length, as a small image.

    scikit-learn's checks pass rows of a few numbers, which are no images, and numbers
    of classes as y, which are no labels of normal and abnormal images.
    """

    def set_params(self, **params):
        # What the checks call contamination, the fraction of X that is called abnormal,
        # is false_alarm_rate here: of 300 images one more, the one at the threshold.
        given = params.get("contamination")
        if isinstance(given, float) and 0 < given < 0.5:
            params["false_alarm_rate"] = params.pop("contamination") + 1 / 300
        return super().set_params(**params)

    def fit(self, X, y=None, groups="auto", masks=None):
        X = validate_data(self, X)
        n_features = self.n_features_in_
        super().fit(self._to_images(X), groups=None)  # rows may look like twins
        self.n_features_in_ = n_features
        return self

    def partial_fit(self, X, y=None):
        if not hasattr(self, "encoder_"):
            return self.fit(X)
        return super().partial_fit(self._to_images(validate_data(self, X, reset=False)))

    def score_samples(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        return super().score_samples(self._to_images(X))

    def _to_images(self, X):
        # As small as patches of 32, or of 16, let them be.
        side = 36 if self.encoder == "hierarchical" else 20
        images = np.stack([np.resize(row, (side, side)) for row in X])
        return 0.5 + np.arctan(images) / np.pi

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


def make_row_estimator(**parameters):
    given = {"patch_size": 32, "false_alarm_rate": 0.1, "max_iter": 2} | parameters
    return RowPatchSVDD(n_jobs=1, device="cpu", random_state=SEED, **given)


# One that trains an encoder from random weights.
TRAINED = {
    "encoder": "hierarchical",
    "embedding_dim": 8,
    "max_iter": 1,
    "training": Training(batch_size=2),
}


@parametrize_with_checks([make_row_estimator()])
def test_sklearn_check(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([make_row_estimator(**TRAINED)])
def test_sklearn_check_of_one_that_trains(estimator, check):
    check(estimator)


def test_sklearn_checks_really_run():
    """scikit-learn leaves all but one out if an estimator takes no rows."""
    checks = list(estimator_checks_generator(make_row_estimator(), mark="xfail"))
    assert len(checks) > 40
    assert all(isinstance(check, functools.partial) for _, check in checks)


@pytest.fixture
def labelled(normal, mixed):
    X = np.concatenate([normal, mixed.images])
    y = np.concatenate([np.ones(len(normal), dtype=int), mixed.labels])
    return X, y


def as_float(X):
    return X / 255


def test_pipeline_behind_a_function(untrained, normal, mixed):
    pipeline = make_pipeline(FunctionTransformer(as_float), untrained)
    scores = pipeline.fit(normal).score_samples(mixed.images)
    alone = clone(untrained).fit(normal)
    np.testing.assert_allclose(scores, alone.score_samples(mixed.images), rtol=1e-5)
    assert set(pipeline.predict(mixed.images)) <= {1, -1}


def to_images(X):
    return X.reshape(len(X), 48, 48, 3)


def test_pipeline_behind_a_step_for_rows(quick, normal, mixed):
    rows, new_rows = normal.reshape(8, -1), mixed.images.reshape(8, -1)
    steps = MinMaxScaler(), FunctionTransformer(to_images), quick
    pipeline = make_pipeline(*steps).fit(rows)
    assert pipeline.score_samples(new_rows).shape == (8,)
    assert pipeline[-1].inspected_shape_ == (48, 48, 3)
    assert pipeline[-1].n_features_in_ == rows.shape[1]


def test_grid_search_over_lambda_and_dimension(quick, labelled):
    X, y = labelled
    pipeline = make_pipeline(FunctionTransformer(as_float), quick)
    grid = {"patchsvdd__lam": [1e-3, 1.0], "patchsvdd__embedding_dim": [4, 8]}
    search = GridSearchCV(
        pipeline, grid, scoring="roc_auc", cv=StratifiedKFold(2), n_jobs=2
    ).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_[-1].embedding_dim in (4, 8)
    assert search.decision_function(X).shape == y.shape
