"""Calls of the estimator in whatever mode of torch the caller is, and after it."""

import copy
import pickle

import numpy as np
import pytest
import torch
from settings import SEED

import skpatchsvdd
from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures


@pytest.fixture(scope="module", params=["no_grad", "inference_mode"])
def mode(request):
    return getattr(torch, request.param)


@pytest.fixture(scope="module")
def images():
    return make_textures(6, image_size=64, random_state=SEED).images


def make(**parameters):
    return PatchSVDD(random_state=SEED, **{"max_iter": 2} | parameters)


@pytest.fixture(scope="module")
def fitted(images):
    return make().fit(images[:4])


def make_module():
    return torch.nn.Conv2d(3, 4, 3, stride=4)


@pytest.mark.parametrize(
    "parameters",
    [{}, {"encoder": "hierarchical", "patch_size": 32, "embedding_dim": 4}],
    ids=["default", "hierarchical"],
)
def test_fit_and_partial_fit_in_any_mode(images, mode, parameters):
    est, other = make(**parameters), make(**parameters)
    with mode():
        est.fit(images[:4]).partial_fit(images[4:5])
    other.fit(images[:4]).partial_fit(images[4:5])
    assert all(p.grad_fn is None for p in est.encoder_.parameters())
    expected = other.score_samples(images)
    np.testing.assert_array_equal(est.score_samples(images), expected)
    est.set_params(warm_start=True).fit(images[:4]).partial_fit(images[4:])


def test_a_first_score_in_any_mode(fitted, images, mode):
    est = copy.deepcopy(fitted)
    with mode():
        scores = est.score_samples(images)
    make().fit(images[:3])  # with its own trainings, and what they share
    np.testing.assert_array_equal(est.score_samples(images), scores)
    est.explain(images), est.partial_fit(images[4:])


@pytest.mark.parametrize("way", ["load", "pickle", "copy"])
def test_what_was_loaded_in_any_mode_works_outside(fitted, images, mode, way, tmp_path):
    fitted.save(tmp_path / "part.model")
    with mode():
        if way == "load":
            est = skpatchsvdd.load(tmp_path / "part.model")
        elif way == "pickle":
            est = pickle.loads(pickle.dumps(fitted))
        else:
            est = copy.deepcopy(fitted)
        inside = est.score_samples(images)
    np.testing.assert_array_equal(inside, fitted.score_samples(images))
    np.testing.assert_array_equal(est.score_samples(images), inside)
    est.save(tmp_path / "again.model")
    est.set_params(warm_start=True).partial_fit(images[4:]).fit(images[:4])


def test_modules_of_users_in_any_mode(images, mode, tmp_path):
    with mode():
        est = make(encoder=make_module()).fit(images[:4])
        scores = est.score_samples(images)
        read = pickle.loads(pickle.dumps(est))
    for other in (est, read, pickle.loads(pickle.dumps(read))):
        np.testing.assert_array_equal(other.score_samples(images), scores)
        other.partial_fit(images[4:])
