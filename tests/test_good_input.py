"""Every form in which images may come in counts as the plain array it stands for."""

import warnings

import numpy as np
import pytest
import torch
from inputs import Table, floats, objects, pillow, read_only
from settings import SEED
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from unchanged import unchanged


def swapped(X):
    sixteen = X.astype(np.uint16) * 257
    return sixteen.astype(sixteen.dtype.newbyteorder("S"))


def padded(X):
    wide = np.zeros((8, 40, 40, 4), dtype=np.uint8)
    wide[::2, 3:37, 6:, 1:] = X
    return wide[::2, 3:37, 6:, 1:]


GOOD = [
    ("tuple", tuple, None),
    ("list", list, None),
    ("objects", lambda X: objects(*X), None),
    ("column of images", Table, None),
    ("buffer", memoryview, None),
    ("reversed twice", lambda X: X[..., ::-1].copy()[..., ::-1], None),
    ("transposed", lambda X: X.swapaxes(1, 2), lambda X: X.swapaxes(1, 2).copy()),
    ("every other", lambda X: X[::2], lambda X: X[[0, 2]]),
    ("part of a larger array", padded, None),
    ("subclass", lambda X: X.view(np.recarray), None),
    ("nothing hidden", np.ma.array, None),
    ("no value hidden", lambda X: np.ma.masked_greater(X, 255), None),
    ("sixteen bits", lambda X: X.astype(np.uint16) * 257, floats),
    ("swapped bytes", swapped, floats),
    (
        "float16",
        lambda X: np.float16(floats(X)),
        lambda X: np.float32(np.float16(floats(X))),
    ),
    ("float64", lambda X: np.float64(floats(X)), floats),
    ("long double", lambda X: np.longdouble(floats(X)), floats),
    ("object numbers", lambda X: floats(X).astype(object), floats),
    ("nested floats", lambda X: floats(X).tolist(), floats),
    ("booleans", lambda X: X > 99, lambda X: np.float32(X > 99)),
    ("negative", lambda X: floats(X) - 1, lambda X: np.float32(floats(X) - 1)),
    ("bytes and floats", lambda X: [X[0], floats(X)[1]], lambda X: X[:2]),
    ("tensor", torch.from_numpy, None),
    ("tensors", lambda X: list(torch.from_numpy(X)), None),
    ("gradients", lambda X: torch.from_numpy(floats(X)).requires_grad_(), floats),
    ("pillow", pillow, None),
    ("pillow with alpha", lambda X: pillow(X, "RGBA"), None),
    ("pillow in CMYK", lambda X: pillow(X, "CMYK"), None),
    ("one image", lambda X: X[2:3], lambda X: X[2:3]),
]


@pytest.mark.parametrize(("name", "make", "plain"), GOOD)
def test_good_images_score_as_plain_arrays(tiny_fitted, tiny, name, make, plain):
    est, X = tiny_fitted, tiny
    expected = est.score_samples(X if plain is None else plain(X))
    assert np.isfinite(expected).all()
    with unchanged(est, X):
        scores = est.score_samples(make(X))
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-7)


DOUBTFUL = [
    ("floats of bytes", lambda X: X * 1.0, UserWarning, "up to .* as they are.*Divide"),
    ("negative", lambda X: X - 300.0, UserWarning, "X holds floats from -300 to -45"),
    ("identical", lambda X: X[[0, 0, 0]], UserWarning, "X holds 2 copies"),
    ("constant", lambda X: X[[0, 0, 0]] * 0, ConvergenceWarning, "score the same"),
]


@pytest.mark.parametrize(("name", "make", "category", "match"), DOUBTFUL)
@pytest.mark.filterwarnings("ignore:X holds", "ignore:all training images")
def test_doubtful_images_are_warned_about(
    tiny_fitted, tiny, name, make, category, match
):
    est, X = tiny_fitted, tiny
    new = clone(est)
    with pytest.warns(category, match=match):
        new.fit(make(X))
    assert np.isfinite(new.training_scores_).all()
    assert np.isfinite(new.anomaly_map(make(X))).all()


def test_images_are_resized_and_maps_resized_back(untrained, normal):
    rng = np.random.default_rng(SEED)
    sizes = [(60, 50), (90, 41), (33, 70)]
    X = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    est = untrained.set_params(image_size=(40, 44)).fit(X)
    assert est.inspected_shape_ == (40, 44, 3)
    maps = est.anomaly_map(X)
    assert [one_map.shape for one_map in maps] == sizes
    assert est.anomaly_map(X[:1] * 2).shape == (2, 60, 50)
    assert est.score_samples(normal).shape == (8,)
    assert est.anomaly_map(normal).shape == (8, 48, 48)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_any_number_of_channels(quick, rng, channels):
    X = read_only(rng.random((4, 40, 36, channels)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick.fit(X)
    assert quick.inspected_shape_ == (40, 36, channels)
    assert quick.anomaly_map(X).shape == (4, 40, 36)
    if channels == 1:
        grey = quick.score_samples(X[..., 0])
        np.testing.assert_array_equal(grey, quick.score_samples(X))
