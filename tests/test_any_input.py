"""Arbitrary input: it works, with finite scores and maps, or is refused by name."""

import re
import traceback
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import objects, read_only
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from skpatchsvdd import Inspection, PatchSVDD, Training

# Smaller ones are in test_bad_input.py and test_good_input.py.
pytestmark = pytest.mark.slow

PARAMETERS = [
    x for cls in (PatchSVDD, Training, Inspection) for x in cls().get_params()
]
# One of these must be in every message.
CULPRITS = re.compile(
    rf"\b(X|y|image \d+|images|groups|false_alarm_rate|{'|'.join(PARAMETERS)})\b"
)
nan, inf = float("nan"), float("inf")


def examples(n_examples):
    """Try that many, the same ones each time."""
    return settings(
        max_examples=n_examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def call(method, *args, **kwargs):
    """Return what a method does, or None if it refuses, as it should, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return method(*args, **kwargs)
        except (TypeError, ValueError) as error:
            refusal = error
    # In its own words, or scikit-learn's: not what happens to fail further below.
    *_, last = traceback.extract_tb(refusal.__traceback__)
    assert re.search(r"skpatchsvdd[\\/]_|_param_validation\.py", last.filename)
    assert CULPRITS.search(str(refusal)), f"names nothing: {refusal}"
    return None


FEW = st.integers(0, 4)
LENGTHS = st.sampled_from([0, 1, 2, 3, 4, 31, 32, 33, 34, 34, 34, 40])
# Any shape, those that are almost right, and those that are.
RIGHT = st.tuples(st.integers(1, 4), st.just(34), st.just(34), st.just(3))
SHAPES = st.one_of(
    st.lists(LENGTHS, max_size=5).map(tuple),
    st.tuples(FEW, LENGTHS, LENGTHS, FEW),
    st.tuples(FEW, LENGTHS, LENGTHS),
    *[RIGHT] * 5,
)
DTYPES = ["u1", "u1", "u2", ">u2", "f2", "f4", "f4", ">f4", "f8", "g", "?", "O"]
DTYPES += ["i1", "i2", "i4", "i8", "u4", "u8", "c8", "U3", "S3", "M8[s]", "m8[s]"]
FILLS = [0, 1, 1, 1, 1, 1, 255, -1, -300, 1e9, 1e38, 1e300, nan, inf, -inf]


@st.composite
def arrays(draw, shapes=SHAPES, dtypes=DTYPES):
    """Numbers of 0..1, or of 0 to some other value, in any type and view of memory."""
    shape, dtype = draw(shapes), np.dtype(draw(st.sampled_from(dtypes)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    with np.errstate(all="ignore"):
        values = rng.random(shape) * draw(st.sampled_from(FILLS))
        if dtype.kind in "ui":
            values = np.clip(np.nan_to_num(values) * 255, 0, 127).astype("i8")
        elif dtype.kind in "Mm":
            values = np.zeros(shape, dtype="i8")
        values = np.array(values, dtype=dtype)
    return draw(st.sampled_from(VIEWS))(values)


def reverse(x):
    return x[tuple(slice(None, None, -1) for _ in x.shape)]


def hide(x):
    mask = np.zeros(x.shape, dtype=bool)
    mask.flat[:1] = True
    return np.ma.array(x, mask=mask)


def as_tensor(x):
    return torch.from_numpy(x.copy()) if x.dtype in ("=u1", "=f4", "=f8", "?") else x


VIEWS = [
    *(lambda x: x, reverse, read_only, np.asfortranarray, np.transpose, np.ma.array),
    *(lambda x: x.repeat(2, axis=-1)[..., ::2] if x.ndim else x,),
    *(lambda x: np.broadcast_to(x[:1], x.shape) if len(x.shape) and len(x) else x,),
    *(lambda x: x.swapaxes(0, -1) if x.ndim else x, hide, as_tensor),
    *(lambda x: objects(*x) if x.ndim else x,),
    *(lambda x: list(x) if x.ndim else x, lambda x: tuple(x) if x.ndim else x),
    *(lambda x: x.tolist() if x.size < 9999 else x,),
]


@examples(250)
@given(X=arrays())
def test_any_array_is_scored_or_refused(tiny_fitted, X):
    scores = call(tiny_fitted.score_samples, X)
    if scores is None:
        return
    assert scores.shape == (len(X),)
    assert np.isfinite(scores).all()
    maps = call(tiny_fitted.anomaly_map, X)
    assert maps.shape == (len(X), 34, 34)
    assert np.isfinite(maps).all()


SIZES = st.sampled_from([20, 32, 33, 36])
TRAINING = st.one_of(
    st.tuples(st.integers(1, 4), SIZES, SIZES, st.integers(1, 5)),
    st.tuples(st.integers(2, 4), SIZES, SIZES),
)


@examples(100)
@given(
    X=arrays(TRAINING, DTYPES[:12]), size=st.sampled_from([None, None, 32, (33, 40)])
)
def test_any_array_is_learnt_from_or_refused(tiny_fitted, X, size):
    est = clone(tiny_fitted).set_params(image_size=size)
    if call(est.fit, X) is None:
        with pytest.raises(NotFittedError):
            est.score_samples(X)
        return
    assert np.isfinite(est.training_scores_).all()
    maps = call(est.anomaly_map, X)
    assert [x.shape for x in maps] == [np.shape(x)[:2] for x in X]


# Of each parameter, values that can be and some that cannot.
BOTH = ["hierarchical", "procedural"]
VALUES = {
    "lam": [None, 0, 0.3, 10.0, "auto", -1, nan],
    "embedding_dim": [1, 3, 8, 0, 2.0],
    "patch_size": [32, 32, 32, 64, 33],
    "image_size": [None, 32, (33, 40), (40, 32), 20, 0, (32,), "s"],
    "false_alarm_rate": ["auto", 0.5, 0.01, 0, "x"],
    "bank_size": [None, 1, 7, 0.5, 1e-9, 10**9, 0, 2.0],
    "max_iter": [0, 0, 1, -1],
    "random_state": [0, 7, -1],
    "n_jobs": [None, 1, -1, 0, 10**7],
    "training__batch_size": [1, 2, 0],
    "training__learning_rate": ["auto", 1e-3, 1e-9, 0],
    "early_stopping": [False, True, 1],
    "training__validation_fraction": [0.1, 0.5, 0.99, 1],
    "warm_start": [False, True],
    "strides": [None, (1000,), (16,), (7,), (4, 16), (0,), "x"],
    "inspection__light": ["auto", 0, 1, 0.5, 2],
    "inspection__position_weight": ["auto", 0, 5, 1e38, -1],
    "inspection__relative_weight": ["auto", 0, 1, 0.5, 2],
    "inspection__score_pixels": ["auto", 1, 5, 10**9, 0],
    "roi": [None, np.eye(34), np.ones((34, 34)), np.zeros((34, 34)), np.ones((3, 3))],
    "training__damage_weight": [0, 1.0, -1],
    "training": ["dense", "paper"],
    "training__method": ["dense", "paper", "x"],
    "inspection": ["default", "paper"],
    "encoder": ["auto", "hierarchical", "procedural", BOTH, "x"],
}
SETTINGS = st.lists(st.sampled_from(sorted(VALUES)), max_size=5, unique=True).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.sampled_from(VALUES[name]) for name in names}
    )
)


@examples(100)
@given(parameters=SETTINGS, n_images=st.integers(2, 4))
def test_any_parameters_work_or_are_refused(tiny_fitted, tiny, parameters, n_images):
    est = clone(tiny_fitted).set_params(**{"training__batch_size": 1, **parameters})
    X = tiny[:n_images]
    if call(est.fit, X) is None:
        assert not hasattr(est, "encoder_")
        return
    assert np.isfinite(call(est.score_samples, tiny)).all()
    assert call(est.anomaly_map, tiny).shape == (4, 34, 34)


LABELS = [1, 1, 1, 1.0, -1, 0, True, nan, None, "1", "good", 1j, np.eye(34), np.eye(2)]
LISTS = st.lists(st.sampled_from(LABELS), max_size=6)
KINDS = [list, list, np.array, tuple, np.ma.array, lambda y: dict(enumerate(y))]


@examples(50)
@given(
    y=LISTS | st.lists(st.sampled_from([1, -1]), min_size=4, max_size=4), data=st.data()
)
def test_any_labels_and_groups_work_or_are_refused(tiny_fitted, tiny, y, data):
    groups = data.draw(st.none() | LISTS)
    with suppress(TypeError, ValueError, RuntimeError):  # numpy and torch refuse some
        y = data.draw(st.sampled_from(KINDS))(y)
    est = clone(tiny_fitted)
    if call(est.fit, tiny, y, groups) is not None:
        assert np.isfinite(est.training_scores_).all()
        assert len(est.training_scores_) == sum(label == 1 for label in y)
