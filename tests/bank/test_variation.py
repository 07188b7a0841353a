import numpy as np
import pytest
import torch
from reference import usual_distances

from skpatchsvdd._bank.exact import Bank, ExactIndex
from skpatchsvdd._bank.variation import (
    KernelModel,
    PatchSample,
    Sampler,
    Variation,
    regress,
)
from skpatchsvdd._utils import as_columns, halve_squares

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
    sampler.add(torch.from_numpy(patches[:2]), np.arange(2), np.arange(2))
    rest = np.arange(2, n_images)
    sampler.add(torch.from_numpy(patches[2:]), rest, rest)
    owners = np.arange(n_images).repeat(n_patches)
    index = ExactIndex(Bank(patches.reshape(-1, n_features), owners))
    return Variation(sampler.result(), index, CPU)


@pytest.mark.parametrize("owner", [-1, 4])
def test_usual_distances_equal_the_plain_way(rng, owner):
    patches = draw(rng)
    variation = make_variation(patches)
    queries = draw(rng, 1, 40) + 0.3
    local = variation.measure(torch.from_numpy(queries), [owner])[0]
    kept = np.flatnonzero(variation.sample.owners != owner)
    expected = usual_distances(
        queries[0],
        variation.sample.rows[kept].reshape(-1, 8),
        variation.distances[kept].ravel(),
        variation.width,
    )
    typical = np.median(variation.distances)
    expected += typical - np.median(variation.distances[kept])  # always of all
    np.testing.assert_allclose(local.numpy(), expected, rtol=1e-3)


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
    sample = PatchSample(
        np.zeros((4, 1500, 2), dtype=np.float32), np.arange(4), np.arange(4)
    )
    other = PatchSample(
        np.ones((6, 1500, 2), dtype=np.float32), np.arange(4, 10), np.arange(6)
    )
    joined = sample.join(other, np.random.RandomState(0))
    assert joined.rows.shape == (5, 1500, 2)
    np.testing.assert_array_equal(joined.rows[:, 0, 0], joined.owners >= 4)


def test_many_images_do_not_all_give_a_patch():
    sampler = Sampler(20_000, np.random.RandomState(0))
    for start in range(0, 20_000, 5_000):
        owners = np.arange(start, start + 5_000)
        sampler.add(torch.zeros(5_000, 2, 1), owners, owners)
    sample = sampler.result()
    assert sample.rows.shape == (8192, 1, 1)
    assert len(np.unique(sample.owners)) == 8192


def test_without_other_owners_nothing_is_left_out(rng):
    patches = draw(rng)
    sampler = Sampler(6, np.random.RandomState(0), 50)
    sampler.add(torch.from_numpy(patches), np.zeros(6, dtype=int), np.arange(6))
    bank = Bank(patches.reshape(-1, 8), np.zeros(6 * 300, dtype=int))
    variation = Variation(sampler.result(), ExactIndex(bank), CPU)
    local = variation.measure(torch.from_numpy(patches[:1]), [0])
    assert torch.isfinite(local).all()


def make_clouds(rng, n_rows=600, n_features=12):
    """Rows that are hard to tell apart in one way or another."""
    x = rng.normal(size=(n_rows, n_features))
    number = np.arange(n_rows)[:, None]
    kinds = 10 * rng.normal(size=(40, n_features))[number[:, 0] % 40]
    return {
        "clusters": kinds + x,
        "one cluster": 1e-3 * x + 5,
        "line": x[:, :1] * kinds[:1],
        "copies": np.where(number % 3, kinds[:1], kinds + x),
        "few values": kinds,
        "far apart": kinds * np.where(number % 5, 1, 1e3) + x,
    }


def make_queries(rows, rng):
    """Queries on rows, between them, beside them, far away, and where none are."""
    a, b = rows[rng.permutation(len(rows))[:100]].reshape(2, 50, -1)
    noise = rng.normal(size=a.shape) * rows.std(axis=0)
    mean = rows.mean(axis=0)
    places = [a, (a + b) / 2, a + 0.1 * noise, mean + 30 * noise, mean + 0 * noise]
    return np.concatenate(places)


@pytest.mark.parametrize("width", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize(
    "kind", ["clusters", "one cluster", "line", "copies", "few values", "far apart"]
)
def test_what_is_usual_is_a_mean_weighted_by_the_kernel(rng, kind, width):
    rows = make_clouds(rng)[kind]
    queries = make_queries(rows, rng)
    origin = torch.from_numpy(rows.mean(axis=0))
    x = torch.from_numpy(rows) - origin
    width *= float(x.square().mean())
    distances = torch.from_numpy(rng.uniform(1, 9, len(rows)))
    owners = (x[:, 0] > x[:, 0].quantile(0.4)).int()
    scaled = as_columns(x) / width, halve_squares(x) / width
    model = KernelModel(origin, *scaled, distances, owners, 0.0)
    for left_out in (-1, 1):
        kept = owners.numpy() != left_out
        squares = ((queries[:, None] - rows[kept]) ** 2).sum(axis=2) / (2 * width)
        weights = np.exp(squares.min(axis=1, keepdims=True) - squares)
        expected = weights @ distances.numpy()[kept] / weights.sum(axis=1)
        found = regress(model.leave_out(left_out), torch.from_numpy(queries))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
