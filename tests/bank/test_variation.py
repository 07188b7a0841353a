import numpy as np
import pytest
import torch
from reference import nearest_distances, usual_distances

from skpatchsvdd._bank.exact import Bank, ExactIndex
from skpatchsvdd._bank.variation import PatchSample, Sampler, Variation

CPU = torch.device("cpu")


def draw(rng, n_images=6, n_patches=300):
    """Patches of two kinds: the first half varies little, the second a lot."""
    kinds = rng.normal(size=(2, 1, 8)) * 5
    spreads = np.array([0.1, 1.0])[:, None, None]
    patches = [
        kinds + spreads * rng.normal(size=(2, n_patches // 2, 8))
        for _ in range(n_images)
    ]
    return np.float32(patches).reshape(n_images, n_patches, 8)


def make_variation(patches, n_each=80):
    n_images, n_patches, n_features = patches.shape
    sampler = Sampler(n_images, np.random.RandomState(0), n_each)
    sampler.add(patches[:2], np.arange(2))
    sampler.add(patches[2:], np.arange(2, n_images))
    owners = np.arange(n_images).repeat(n_patches)
    index = ExactIndex(Bank(patches.reshape(-1, n_features), owners))
    return Variation(sampler.result(), index, CPU)


def test_distances_are_those_to_other_owners(rng):
    patches = draw(rng)
    variation = make_variation(patches)
    assert variation.distances.shape == (6, 80)
    for i in range(6):
        bank = np.delete(patches, i, axis=0).reshape(-1, 8)
        expected = nearest_distances(variation.sample.rows[i], bank)
        np.testing.assert_allclose(variation.distances[i], expected, rtol=1e-4)


@pytest.mark.parametrize("owner", [-1, 4])
def test_usual_distances_equal_the_plain_way(rng, owner):
    patches = draw(rng)
    variation = make_variation(patches)
    queries = draw(rng, 1, 40) + 0.3
    usual = variation.usual(torch.from_numpy(queries), [owner])[0]
    kept = np.flatnonzero(variation.sample.owners != owner)
    expected = usual_distances(
        queries[0],
        variation.sample.rows[kept].reshape(-1, 8),
        variation.distances[kept].ravel(),
        variation.width,
    )
    typical = np.median(variation.distances)
    expected += typical - np.median(variation.distances[kept])  # always of all
    np.testing.assert_allclose(usual.numpy(), expected, rtol=1e-3)


def test_what_varies_more_may_lie_farther_away(rng):
    patches = draw(rng)
    variation = make_variation(patches)
    usual = variation.usual(torch.from_numpy(patches[:1]), [0])[0].numpy()
    typical = np.median(variation.distances)
    assert usual[150:].min() - typical > 3 * (usual[:150].max() - typical)


def test_every_image_gives_as_many_patches(rng):
    patches = draw(rng)
    sample = make_variation(patches).sample
    assert sample.rows.shape == (6, 80, 8)
    for rows, own in zip(sample.rows, patches, strict=True):
        assert len(np.unique(rows, axis=0)) == 80
        assert {tuple(x) for x in rows} <= {tuple(x) for x in own}
    few = make_variation(patches[:, :30])
    assert few.sample.rows.shape == (6, 30, 8)


def test_a_joined_sample_does_not_grow_without_end(rng):
    sample = PatchSample(np.zeros((4, 1500, 2), dtype=np.float32), np.arange(4))
    other = PatchSample(np.ones((6, 1500, 2), dtype=np.float32), np.arange(4, 10))
    joined = sample.join(other, np.random.RandomState(0))
    assert joined.rows.shape == (5, 1500, 2)
    np.testing.assert_array_equal(joined.rows[:, 0, 0], joined.owners >= 4)


def test_many_images_do_not_all_give_a_patch():
    sampler = Sampler(20_000, np.random.RandomState(0))
    for start in range(0, 20_000, 5_000):
        owners = np.arange(start, start + 5_000)
        sampler.add(np.zeros((5_000, 2, 1), dtype=np.float32), owners)
    sample = sampler.result()
    assert sample.rows.shape == (8192, 1, 1)
    assert len(np.unique(sample.owners)) == 8192


@pytest.mark.parametrize("n_images", [3, 6])
def test_equal_patches_are_no_trouble(n_images):
    patches = np.full((n_images, 20, 8), 3.0, dtype=np.float32)
    variation = make_variation(patches)
    usual = variation.usual(torch.from_numpy(patches[:1] + 1), [-1])
    np.testing.assert_array_equal(usual.numpy(), 1.0)


def test_without_other_owners_nothing_is_left_out(rng):
    patches = draw(rng)
    sampler = Sampler(6, np.random.RandomState(0), 50)
    sampler.add(patches, np.zeros(6, dtype=int))
    bank = Bank(patches.reshape(-1, 8), np.zeros(6 * 300, dtype=int))
    variation = Variation(sampler.result(), ExactIndex(bank), CPU)
    usual = variation.usual(torch.from_numpy(patches[:1]), [0])
    assert torch.isfinite(usual).all()
