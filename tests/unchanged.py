"""What bad input may not do: change an estimator."""

import pickle
from contextlib import contextmanager

import pytest
from sklearn.base import clone


@contextmanager
def unchanged(est, X):
    """Check that an estimator stays as it is, to the last bit of state and scores."""
    X = X[:2]
    before = pickle.dumps(est), est.score_samples(X).tobytes()
    yield
    assert (pickle.dumps(est), est.score_samples(X).tobytes()) == before


@contextmanager
def refused(est, X, match, error=ValueError):
    """Check that a call is refused, and that a fitted estimator stays as it is."""
    with unchanged(est, X), pytest.raises(error, match=f"(?s){match}"):
        yield


def check_stays_unfitted(est, *args, **kwargs):
    """Check that a fit of a new estimator is refused, and sets nothing."""
    new = clone(est)
    before = dict(vars(new))
    with pytest.raises((TypeError, ValueError)):
        new.fit(*args, **kwargs)
    assert {name: id(x) for name, x in vars(new).items()} == {
        name: id(x) for name, x in before.items()
    }
