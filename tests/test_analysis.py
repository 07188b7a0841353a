import sys

import matplotlib
import numpy as np
import pytest
from settings import SEED
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd._analysis.embedding import _polar_positions, _project
from skpatchsvdd.analysis import PatchEmbeddingDisplay, intrinsic_dimension
from skpatchsvdd.datasets import make_textures

N_AMBIENT = 64


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def images():
    return make_textures(6, image_size=64, random_state=SEED).images


@pytest.fixture(scope="module")
def random_encoder(images):
    return fit_random_encoder(images)


def fit_random_encoder(X, **parameters):
    est = PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        embedding_dim=8,
        max_iter=0,
        n_jobs=1,
        random_state=SEED,
        **parameters,
    )
    return est.fit(X)


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
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("dimension", "low", "high"),
    # The surface of a cube of many dimensions is near, and makes estimates too low.
    [(1, 0.93, 1.07), (2, 1.85, 2.15), (5, 4.3, 5.3), (10, 7.5, 10)],
)
def test_dimension_of_a_cube(dimension, low, high, seed, place):
    features = place(cube(dimension, seed), seed + 1)
    assert low < intrinsic_dimension(features) < high


def test_dimension_by_hand():
    # 30 ratios, of which the largest tenth, three of ten times 3, are cut off at 3:
    # their logarithms sum up to 10 * (log 3 + log 2 + log 3/2) all the same.
    expected = (27 - 1) / (10 * np.log(9))
    assert intrinsic_dimension(triplets(10)) == pytest.approx(expected)


def test_few_wild_ratios_hardly_count(rng):
    features = place_flat(cube(2, 0), 0)
    before = intrinsic_dimension(features)
    # Twenty pairs that nearly coincide. If all ratios counted for what they are, the
    # dimension would fall by a sixth.
    features[:20] = features[20:40] + 1e-5 * rng.normal(size=(20, N_AMBIENT))
    assert intrinsic_dimension(features) == pytest.approx(before, rel=0.08)


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


def test_empty_background_does_not_count(rng):
    features = place_flat(cube(4, 0, n=300), 0)
    empty = np.full((500, N_AMBIENT), 0.7) + 1e-8 * rng.normal(size=(500, N_AMBIENT))
    mixed = rng.permutation(np.concatenate([features, empty]))
    expected = intrinsic_dimension(features)
    assert intrinsic_dimension(mixed) == pytest.approx(expected, rel=0.02)


def test_features_of_empty_images_are_copies(random_encoder, images, rng):
    features = random_encoder.embed(np.zeros_like(images), 32)
    # Some machines round some of them otherwise: here all are.
    features *= 1 + np.float32(2**-23) * rng.integers(-3, 4, features.shape)
    assert len(np.unique(features.reshape(-1, 8), axis=0)) > 20
    with pytest.raises(ValueError, match="fewer than 20 distinct points, of 486 drawn"):
        intrinsic_dimension(features)


@pytest.mark.parametrize("value", [0, 100, 255])
def test_rounding_of_a_trained_encoder_is_no_feature(images, value):
    est = PatchSVDD(
        encoder="hierarchical",
        patch_size=32,
        max_iter=5,
        training=Training(batch_size=2),
        random_state=SEED,
    )
    est.fit(images)
    empty = np.full((3, *images.shape[1:]), value, dtype=np.uint8)
    with pytest.raises(ValueError, match="fewer than 20 distinct points"):
        intrinsic_dimension(est.embed(empty, 32))
    with pytest.raises(ValueError, match="same feature"):
        PatchEmbeddingDisplay.from_estimator(est, empty)


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


def test_sampling_follows_random_state():
    features = place_flat(cube(3, 0, n=600), 0)

    def draw(seed):
        return intrinsic_dimension(features, n_samples=100, random_state=seed)

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)
    assert draw(np.random.RandomState(0)) == draw(0)
    everything = intrinsic_dimension(features, n_samples=None)
    assert everything == pytest.approx(intrinsic_dimension(features, n_samples=600))


def test_dimension_of_patch_features(random_encoder, images):
    features = random_encoder.embed(images, 32)
    assert features.shape == (6, 9, 9, 8)
    assert 1 < intrinsic_dimension(features, n_samples=200, random_state=0) < 8
    as_rows = features.reshape(-1, 8)
    everything = intrinsic_dimension(features, n_samples=None)
    assert everything == pytest.approx(intrinsic_dimension(as_rows, n_samples=None))


@pytest.mark.parametrize(
    ("features", "match"),
    [
        (np.zeros(8), r"shape \(n, D\) or \(n_images, rows, cols, D\), got \(8,\)"),
        (np.zeros((4, 5, 6)), r"got \(4, 5, 6\)"),
        (np.full((50, 3), np.nan), "features contains NaN"),
        (
            np.random.default_rng(0).random((19, 3)),
            "20 distinct points, of 19",
        ),
        (np.ones((50, 3)), "20 distinct points, of 50"),
        (np.eye(30), "regular grid"),
    ],
)
def test_features_without_a_dimension_are_refused(features, match):
    with pytest.raises(ValueError, match=match):
        intrinsic_dimension(features)


@pytest.mark.parametrize("n_samples", [0, 3, 2.5, "all"])
def test_bad_n_samples_are_refused(n_samples, random_encoder, images):
    match = "n_samples must be an integer of at least {}.*got {!r}"
    with pytest.raises(ValueError, match=match.format(20, n_samples)):
        intrinsic_dimension(np.eye(30), n_samples=n_samples)
    with pytest.raises(ValueError, match=match.format(4, n_samples)):
        PatchEmbeddingDisplay.from_estimator(
            random_encoder, images, n_samples=n_samples
        )


@pytest.fixture(scope="module")
def display(random_encoder, images):
    shown = PatchEmbeddingDisplay.from_estimator(
        random_encoder, images, n_samples=90, random_state=0
    )
    yield shown
    plt.close(shown.figure_)


class PositionEstimator(BaseEstimator):
    """Its features are the places of patches: row and column of their top left."""

    def fit(self, X):
        self.inspected_shape_ = (70, 100, 1)
        self.patch_sizes_ = (32, 64)
        self.strides_ = (4, 16)
        return self

    def embed(self, X, patch_size):
        stride = self.strides_[self.patch_sizes_.index(patch_size)]
        tops = np.arange(0, self.inspected_shape_[0] - patch_size + 1, stride)
        lefts = np.arange(0, self.inspected_shape_[1] - patch_size + 1, stride)
        one = np.stack(np.meshgrid(tops, lefts, indexing="ij"), axis=2)
        return np.stack([one] * len(X)).astype(np.float32)


@pytest.mark.parametrize("patch_size", [32, 64, None])
@pytest.mark.parametrize("n_samples", [6, None])
def test_positions_belong_to_their_points(monkeypatch, patch_size, n_samples):
    monkeypatch.setattr(
        "skpatchsvdd._analysis.embedding._project", lambda features, rng: features
    )
    display = PatchEmbeddingDisplay.from_estimator(
        PositionEstimator().fit(None),
        [0, 0],
        patch_size=patch_size,
        n_samples=n_samples,
    )
    n_patches = {32: 2 * 10 * 18}.get(patch_size, 2 * 1 * 3)
    assert len(display.points) == (n_samples or n_patches)
    middle = display.points + (patch_size or 64) / 2
    np.testing.assert_allclose(
        middle[:, 0], 35 - display.r * np.sin(display.theta), atol=1e-5
    )
    np.testing.assert_allclose(
        middle[:, 1], 50 + display.r * np.cos(display.theta), atol=1e-5
    )


def test_theta_and_r_of_known_places(random_encoder):
    theta, r = (x.reshape(9, 9) for x in _polar_positions(random_encoder, 32))
    assert theta[0, 4] == np.pi / 2  # above
    assert theta[4, 8] == 0  # right
    assert theta[8, 4] == -np.pi / 2  # below
    assert theta[4, 0] == np.pi  # left
    assert theta[0, 0] == pytest.approx(3 * np.pi / 4)
    assert r[4, 4] == 0
    assert r[4, 5] == 4
    assert r[0, 0] == r[8, 8] == pytest.approx(16 * 2**0.5)


def test_display_draws_points_in_the_colours_of_places(display):
    assert display.points.shape == (90, 2)
    assert display.theta.shape == display.r.shape == (90,)
    by_theta, by_r = (axis.collections[0] for axis in display.axes_)
    for dots in (by_theta, by_r):
        np.testing.assert_allclose(dots.get_offsets(), display.points)
    np.testing.assert_array_equal(by_theta.get_array(), display.theta)
    np.testing.assert_array_equal(by_r.get_array(), display.r)
    assert by_theta.get_clim() == (-np.pi, np.pi)
    assert by_r.get_clim() == (0, display.r.max())


def test_colours_of_theta_are_cyclic(display):
    cmap = display.axes_[0].collections[0].get_cmap()
    np.testing.assert_allclose(cmap(0.0), cmap(1.0), atol=0.1)
    assert np.abs(np.subtract(cmap(0.0), cmap(0.5))).max() > 0.5


def test_display_is_a_tidy_picture(display):
    assert display.axes_.shape == (2,)
    for axis, name in zip(display.axes_, ("θ", "r"), strict=True):
        assert name in axis.get_title().split()
        assert axis.get_aspect() == 1
        assert not len(axis.get_xticks())
        assert not len(axis.get_yticks())
    bars = [axis for axis in display.figure_.axes if axis not in display.axes_]
    assert len(bars) == 2
    words = [tick.get_text() for tick in bars[0].get_yticklabels()]
    assert words == ["left", "below", "right", "above", "left"]


def test_display_keeps_near_features_together(random_encoder, images):
    # Copies of an image have equal features, which must end up at equal places.
    X = np.stack([images[0], images[1], images[0]])
    features = random_encoder.embed(X, 32).reshape(-1, 8)
    points = _project(features, np.random.RandomState(0)).reshape(3, 81, 2)
    apart = np.linalg.norm(points[0] - points[2], axis=1)
    assert np.median(apart) < 0.05 * np.ptp(points, axis=(0, 1)).min()


def test_display_follows_random_state(display, random_encoder, images):
    def draw(seed):
        return PatchEmbeddingDisplay.from_estimator(
            random_encoder, images, n_samples=90, random_state=seed
        )

    again, other = draw(0), draw(1)
    np.testing.assert_array_equal(again.points, display.points)
    np.testing.assert_array_equal(again.theta, display.theta)
    assert not np.array_equal(other.theta, display.theta)


def test_display_takes_grey_images_and_lists(images):
    grey = [image[:, :, 0] for image in images[:3]]
    est = fit_random_encoder(grey)
    display = PatchEmbeddingDisplay.from_estimator(est, grey, n_samples=20)
    assert np.isfinite(display.points).all()


def test_display_takes_images_of_unequal_size(images):
    X = [images[0], images[1][:50], images[2][:, :60]]
    est = fit_random_encoder(X, image_size=48)
    display = PatchEmbeddingDisplay.from_estimator(est, X, n_samples=None)
    assert display.points.shape == (3 * 5 * 5, 2)
    assert display.r.max() == pytest.approx(8 * 2**0.5)


def test_display_takes_features_of_length_one(images):
    est = fit_random_encoder(images[:2]).set_params(embedding_dim=1).fit(images[:2])
    display = PatchEmbeddingDisplay.from_estimator(est, images[:2], n_samples=4)
    assert np.isfinite(display.points).all()


def test_display_draws_on_given_axes_as_told(rng):
    figure, axes = plt.subplots(2, 1)
    display = PatchEmbeddingDisplay(rng.normal(size=(5, 2)), np.zeros(5), np.ones(5))
    assert display.plot(axes=axes, theta_cmap="twilight", r_cmap="magma", s=2)
    assert display.figure_ is figure
    by_theta, by_r = (axis.collections[0] for axis in axes)
    assert by_theta.get_cmap().name == "twilight"
    assert by_r.get_cmap().name == "magma"
    assert by_r.get_sizes() == [2]


def test_bad_axes_and_lengths_are_refused(rng):
    points = rng.normal(size=(5, 2))
    with pytest.raises(ValueError, match=r"axes must be two.* got 1"):
        PatchEmbeddingDisplay(points, np.zeros(5), np.ones(5)).plot(axes=plt.gca())
    with pytest.raises(ValueError, match="inconsistent"):
        PatchEmbeddingDisplay(points, np.zeros(5), np.ones(4)).plot()


def test_display_refuses_what_it_cannot_draw(random_encoder, images):
    draw = PatchEmbeddingDisplay.from_estimator
    with pytest.raises(NotFittedError):
        draw(PatchSVDD(encoder="hierarchical"), images)
    with pytest.raises(ValueError, match=r"patch_size must be one of \(32,\), got 64"):
        draw(random_encoder, images, patch_size=64)
    with pytest.raises(ValueError, match="same feature"):
        draw(random_encoder, np.zeros_like(images))
    with pytest.raises(ValueError, match=r"axes must be two.* got 3"):
        draw(random_encoder, images, axes=[None] * 3)
    with pytest.raises(TypeError, match="pass the fitted PatchSVDD inside it"):
        draw(make_pipeline(random_encoder), images)
    assert not plt.get_fignums()


def test_too_few_patches_are_refused(images):
    est = fit_random_encoder(images[:2, :32, :32])
    with pytest.raises(ValueError, match=r"X has 2 patches.* at least 4"):
        PatchEmbeddingDisplay.from_estimator(est, images[:2, :32, :32])


def test_missing_matplotlib_is_named_before_any_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setattr(PositionEstimator, "embed", None)  # an error if it is called
    match = r"drawing needs matplotlib: pip install matplotlib"
    with pytest.raises(ImportError, match=match):
        PatchEmbeddingDisplay.from_estimator(PositionEstimator().fit(None), [0])
