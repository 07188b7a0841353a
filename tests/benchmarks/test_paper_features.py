"""benchmarks/paper: the dimension of features, and their picture."""

import numpy as np
import pytest
from paper import embedding
from paper.dimension import intrinsic_dimension

N_AMBIENT = 64


def cube(dimension, seed, n=2000):
    return np.random.default_rng(seed).random((n, dimension))


def place_flat(points, seed):
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.normal(size=(N_AMBIENT, points.shape[1])))
    return points @ axes.T


def place_curved(points, seed):
    rng = np.random.default_rng(seed)
    waves = rng.normal(size=(points.shape[1], N_AMBIENT)) / points.shape[1] ** 0.5
    return np.sin(3 * points @ waves + rng.uniform(0, 2 * np.pi, N_AMBIENT))


def triplets(n):
    """Points 0, 1, 3 on a line, n times and far apart: ratios 3, 2 and 3/2."""
    return (100 * np.arange(n)[:, None] ** 2 + [0, 1, 3]).reshape(-1, 1)


@pytest.mark.parametrize("place", [place_flat, place_curved])
@pytest.mark.parametrize(
    ("dimension", "low", "high"),
    # The surface of a cube of many dimensions is near, and makes estimates too low.
    [(1, 0.93, 1.07), (2, 1.85, 2.15), (5, 4.3, 5.3), (10, 7.5, 10)],
)
def test_dimension_of_a_cube(dimension, low, high, place):
    features = place(cube(dimension, seed=0), seed=1)
    assert low < intrinsic_dimension(features) < high


def test_dimension_by_hand():
    # 30 ratios, of which the largest tenth, three of ten times 3, are cut off at 3:
    # their logarithms sum up to 10 * (log 3 + log 2 + log 3/2) all the same.
    expected = (27 - 1) / (10 * np.log(9))
    assert intrinsic_dimension(triplets(10)) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dimension_does_not_depend_on_turn_scale_and_shift(rng, dtype):
    features = place_curved(cube(3, 0, n=500), 0)
    turn, _ = np.linalg.qr(rng.normal(size=(N_AMBIENT, N_AMBIENT)))
    moved = (1e-3 * (features @ turn + 5)).astype(dtype)
    expected = intrinsic_dimension(features)
    assert intrinsic_dimension(moved) == pytest.approx(expected, rel=1e-2)
    shuffled = rng.permutation(features)
    assert intrinsic_dimension(shuffled) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("noise", [0, 1e-8])
def test_copies_do_not_count(rng, noise):
    features = place_flat(cube(4, 0, n=300), 0)
    copies = np.concatenate([features, features[::-1], features[:50].repeat(5, 0)])
    copies += noise * rng.normal(size=copies.shape)
    expected = intrinsic_dimension(features)
    assert intrinsic_dimension(copies) == pytest.approx(expected, rel=1e-6)


def test_sampling_takes_as_many_patches_of_each_image():
    # The patches of an image make a triplet. One of each lie as the images do; two of
    # any image would make a ratio of dozens.
    features = triplets(30).reshape(30, 1, 3, 1)
    expected = intrinsic_dimension(features.reshape(-1, 1))
    assert intrinsic_dimension(features) == expected
    for seed in range(5):
        one_each = intrinsic_dimension(features, n_samples=30, random_state=seed)
        far = 1e3 * np.arange(30.0)[:, None] ** 2
        assert one_each == pytest.approx(intrinsic_dimension(far), rel=0.01)


@pytest.mark.parametrize(
    ("features", "match"),
    [(np.ones((50, 3)), "20 distinct points, of 50"), (np.eye(30), "regular grid")],
)
def test_features_without_a_dimension_are_refused(features, match):
    with pytest.raises(ValueError, match=match):
        intrinsic_dimension(features)


class PositionEstimator:
    """Its features are the positions of patches: row and column of their top left."""

    inspected_shape_ = (70, 100, 1)
    patch_sizes_ = (32,)
    strides_ = (4,)

    def embed(self, X, patch_size):
        tops, lefts = np.arange(0, 70 - 31, 4), np.arange(0, 100 - 31, 4)
        one = np.stack(np.meshgrid(tops, lefts, indexing="ij"), axis=2)
        return np.stack([one] * len(X)).astype(np.float32)


@pytest.mark.parametrize("n_samples", [6, None])
def test_positions_belong_to_their_points(monkeypatch, n_samples):
    monkeypatch.setattr(embedding, "project", lambda features, rng: features)
    found = embedding.embed_patches(PositionEstimator(), [0, 0], n_samples, 0)
    assert len(found.points) == (n_samples or 2 * 10 * 18)
    x, y = found.r * np.cos(found.theta), found.r * np.sin(found.theta)
    np.testing.assert_allclose(found.points[:, 0] + 16, 35 - y, atol=1e-5)
    np.testing.assert_allclose(found.points[:, 1] + 16, 50 + x, atol=1e-5)


def test_near_features_stay_together(rng):
    features = np.tile(rng.normal(size=(40, 8)).astype(np.float32), (2, 1))
    points = embedding.project(features, np.random.RandomState(0)).reshape(2, 40, 2)
    apart = np.linalg.norm(points[0] - points[1], axis=1)
    assert np.median(apart) < 0.05 * np.ptp(points, axis=(0, 1)).min()
    with pytest.raises(ValueError, match="same feature"):
        embedding.project(np.ones((9, 3), np.float32), np.random.RandomState(0))
