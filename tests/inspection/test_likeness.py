import warnings

import numpy as np
import pytest

from skpatchsvdd import PatchSVDD
from skpatchsvdd._images.arrays import check_images
from skpatchsvdd._inspection.likeness import describe_windows, measure_grouping
from skpatchsvdd.datasets import make_textures

QUICK = {"embedding_dim": 8, "patch_size": 32, "n_jobs": 1}
QUICK |= {"strides": (8,), "random_state": 0, "max_iter": 0}


def make_strips(n_strips, n_tiles, random_state, spread=0.1):
    """Make tiles of strips of one cloth, whose light and threads differ a little."""
    rng = np.random.RandomState(random_state)
    across = np.arange(48 * n_tiles)
    strips = []
    for _ in range(n_strips):
        light, contrast, width = 1 + spread * rng.standard_normal(3)
        threads = np.sin(across / width) * np.sin(across[:48, None] / 1.3)
        noise = rng.standard_normal(threads.shape)
        strips.append(110 * light + 25 * contrast * threads + 12 * noise)
    tiles = np.concatenate([np.split(x, n_tiles, axis=1) for x in strips])
    return np.clip(tiles, 0, 255).astype(np.uint8)


def measure(images):
    return measure_grouping(check_images(images))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n_strips", "n_tiles"), [(16, 10), (8, 4), (5, 40), (20, 6)])
def test_tiles_of_strips_look_grouped(n_strips, n_tiles, seed):
    grouping = measure(make_strips(n_strips, n_tiles, seed))
    assert grouping.p_value == 0.01
    assert grouping.is_harmful


@pytest.mark.parametrize("seed", range(3))
def test_an_order_that_means_nothing_does_not_look_grouped(seed):
    tiles = make_strips(16, 10, seed)
    shuffled = tiles[np.random.RandomState(seed).permutation(len(tiles))]
    grouping = measure(shuffled)
    assert abs(grouping.shift) < 0.35
    assert not grouping.is_harmful


def test_a_slight_trend_does_not_look_grouped():
    # It is certain: the light of the images falls. Yet images vary more than by that.
    rng = np.random.RandomState(0)
    images = make_textures(120, image_size=48, kind="leather", random_state=rng).images
    light = np.linspace(1, 0.8, 120) * (1 + 0.08 * rng.standard_normal(120))
    images = np.clip(images * light[:, None, None, None], 0, 255).astype(np.uint8)
    grouping = measure(images)
    assert grouping.p_value <= 0.05
    assert not grouping.is_harmful


def test_p_values_are_those_of_a_test():
    p_values = [measure(make_strips(40, 1, seed)).p_value for seed in range(60)]
    assert 0.3 < np.mean(p_values) < 0.7
    assert np.mean(np.array(p_values) <= 0.1) < 0.25


@pytest.mark.parametrize("kind", ["fabric", "wood", "leather", "mesh", "gear"])
def test_independent_images_do_not_look_grouped(kind):
    for seed in range(3):
        images = make_textures(40, image_size=64, kind=kind, random_state=seed).images
        assert measure(images).shift < 0.5


def test_equal_images_do_not_look_grouped():
    grouping = measure(np.full((30, 32, 32, 1), 7, dtype=np.uint8))
    assert grouping == (0.0, 1.0)


def test_two_rounds_of_the_same_images_do_not_look_grouped():
    images = make_strips(20, 1, 0)
    assert not measure(np.concatenate([images, images])).is_harmful


def test_the_order_of_many_images_is_seen_in_some_of_them():
    images = make_strips(60, 16, 0)
    assert measure(images).is_harmful
    assert len(images) == 960


def test_windows_are_described_by_light_and_texture():
    image = np.zeros((64, 64, 1), dtype=np.uint8)
    image[:, 32:] = 255
    image[::2, 32:] = 0  # lines, of every second row
    windows = describe_windows(image).reshape(4, 4, -1)
    means, spreads, below = windows[..., 0], windows[..., 1], windows[..., 2]
    np.testing.assert_allclose(means[:, :2], 0, atol=1e-6)
    np.testing.assert_allclose(means[:, 2:], 0.5, atol=1e-6)
    np.testing.assert_allclose(spreads[:, 2:], 0.5, atol=1e-3)
    np.testing.assert_allclose(np.exp(below[:, 3]), 1, atol=0.01)
    np.testing.assert_allclose(np.exp(below[:, 0]), 0, atol=0.01)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (9, 40), (700, 300)])
def test_images_of_any_size_are_described(size):
    windows = describe_windows(np.ones((*size, 3), dtype=np.uint8))
    assert np.isfinite(windows).all()
    assert len(windows) == min(size[0], 4) * min(size[1], 4)


def test_fit_warns_of_groups_unless_it_is_told_them():
    images = make_strips(8, 4, 3)
    est = PatchSVDD(encoder="hierarchical", **QUICK)
    with pytest.warns(UserWarning, match=r"groups=\[name.rsplit"):
        est.fit(images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        est.fit(images, groups=np.arange(8).repeat(4))
