"""What each type of numbers means, and a word where it cannot mean that."""

import warnings

import numpy as np
import pytest
import torch

from skpatchsvdd._images import check_images


def warnings_of(X):
    """Return what is said about the scale of images."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_images(X)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
@pytest.mark.parametrize("highest", [1, 100, 255])
def test_bytes_in_sixteen_bits_are_warned_about(dtype, highest):
    X = np.linspace(0, highest, 128).reshape(2, 8, 8).astype(dtype)
    for given in (X, list(X), np.asfortranarray(X)):
        [message] = warnings_of(given)
        assert f"16-bit integers up to {highest}, which are taken for" in message
        assert "Pass X.astype(np.uint8) if white is 255" in message


def test_a_tensor_of_sixteen_bits_is_warned_about_too():
    X = torch.full((2, 8, 8), 200, dtype=torch.uint16)
    assert "16-bit integers up to 200" in warnings_of(X)[0]


@pytest.mark.parametrize("white", [0, 5000, 65535])
def test_what_is_black_or_has_sixteen_bits_is_not(white):
    assert warnings_of(np.full((2, 8, 8), white, dtype=np.uint16)) == []


def test_standardized_images_are_warned_about():
    X = np.random.default_rng(0).normal(size=(2, 16, 16))
    [message] = warnings_of(X)
    assert "0 is black and 1 is white. If they were standardized" in message
    assert warnings_of(np.clip(X, -0.05, 1.05)) == []  # as after resizing


def test_one_bright_image_is_enough():
    X = np.full((3, 8, 8), 200, dtype=np.uint16)
    X[1, 2, 3] = 60000
    assert warnings_of(X) == warnings_of(list(X)) == []


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_bytes_among_other_types_hide_nothing(dtype):
    X = np.full((2, 8, 8), 200, dtype=np.uint8)
    [message] = warnings_of([X[0], X[1].astype(dtype)])
    assert "200, which are taken" in message
