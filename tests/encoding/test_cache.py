"""Features of images that were encoded before."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from settings import SEED

import skpatchsvdd
from skpatchsvdd import PatchSVDD
from skpatchsvdd._encoding.procedural import (
    CACHE,
    FeatureCache,
    PretrainedNetwork,
    ProceduralEncoder,
)
from skpatchsvdd._encoding.scales import SCALES
from skpatchsvdd.datasets import make_textures


@pytest.fixture
def images():
    return make_textures(6, image_size=64, random_state=SEED).images


@pytest.fixture
def encoded(monkeypatch):
    """The number of images that a network has encoded since."""
    counts, forward = [], PretrainedNetwork.forward
    skpatchsvdd.clear_cache()

    def count(self, images, n_stages=None):
        counts.append(len(images))
        return forward(self, images, n_stages)

    monkeypatch.setattr(PretrainedNetwork, "forward", count)
    yield counts
    skpatchsvdd.clear_cache()


def test_a_second_fit_encodes_nothing(images, encoded):
    est = PatchSVDD(random_state=SEED, device="cpu")
    first = est.fit(images).training_scores_
    assert sum(encoded) > len(images)
    encoded.clear()
    others = est.set_params(lam=3.0).fit(images)
    assert abs(others.training_scores_ - first).max() > 0
    # Crops are encoded a batch at a time, and drawn anew.
    assert 1 not in encoded
    encoded.clear()
    est.score_samples(images[:2])
    assert encoded == []


def test_scores_do_not_depend_on_it(images, encoded):
    est = PatchSVDD(random_state=SEED, device="cpu")
    first = est.fit(images).training_scores_
    np.testing.assert_array_equal(est.fit(images).training_scores_, first)
    skpatchsvdd.clear_cache()
    np.testing.assert_array_equal(est.fit(images).training_scores_, first)


def test_another_image_is_encoded(images, encoded):
    est = PatchSVDD(max_iter=0, device="cpu").fit(images)
    encoded.clear()
    changed = images[:1].copy()
    changed[0, 0, 0, 0] ^= 1
    est.score_samples(changed)
    assert set(encoded) == {1}


def test_another_network_has_other_features(images, encoded):
    """A file may hold other weights than those of the package."""
    est = PatchSVDD(max_iter=0, random_state=SEED, device="cpu").fit(images)
    with torch.no_grad():
        est.encoder_.project[0].weight *= 2
    changed = est.score_samples(images[:2])
    skpatchsvdd.clear_cache()
    np.testing.assert_array_equal(est.score_samples(images[:2]), changed)


def test_smaller_images_have_fewer_scales(encoded):
    size = min(SCALES)
    X = make_textures(4, image_size=32, random_state=SEED).images[:, :size, :size]
    PatchSVDD(max_iter=0, device="cpu").fit(X)
    encoder = ProceduralEncoder.make_pretrained(3, (64, 64))
    patch = torch.from_numpy(X[:1] / np.float32(255)).permute(0, 3, 1, 2)
    with torch.no_grad():
        assert encoder(patch).shape == (1, 64)
        larger = F.interpolate(patch.repeat(2, 1, 1, 1), max(encoder.patch_sizes))
        assert encoder(larger).shape == (2, 64)


def test_gradients_are_not_in_the_way(images, encoded):
    est = PatchSVDD(max_iter=0, device="cpu").fit(images)
    x = torch.from_numpy(images[:1] / np.float32(255)).permute(0, 3, 1, 2)
    encoder = est.encoder_.requires_grad_(True)
    for features in encoder.encode_images(x, encoder.strides):
        features.sum().backward(retain_graph=True)
    assert all(p.grad.abs().sum() > 0 for p in encoder.parameters())


def test_inspection_alone_holds_nothing(images, encoded):
    est = PatchSVDD(max_iter=0, device="cpu").fit(images[:3])
    skpatchsvdd.clear_cache()
    est.score_samples(images)
    assert len(CACHE) == CACHE.n_bytes == 0


def test_the_oldest_are_let_go_of():
    cache = FeatureCache(limit=4 * 100 * 3)
    calls = []

    def encode(x):
        calls.append(float(x[0]))
        return [torch.zeros(100)]

    with cache.filling():
        for value in (1.0, 2.0, 3.0, 1.0, 4.0, 1.0, 2.0):
            cache(encode, torch.tensor([value]))
    assert calls == [1, 2, 3, 4, 2]
    assert cache.n_bytes == 4 * 100 * 3
    with cache.filling():
        cache(lambda x: [torch.zeros(10**4)], torch.tensor([9.0]))
    assert len(cache) == 3


def test_other_threads_wait_for_no_one():
    cache = FeatureCache()
    with cache.filling():
        cache(lambda x: [x], torch.ones(3))
        inner = cache(lambda x: cache(lambda y: [y], x), torch.ones(4))
    assert len(inner[0]) == 4
