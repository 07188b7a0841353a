import numpy as np
import pytest
from settings import SEED

from skpatchsvdd._synthetic import make_probes


def make_images(rng, shape=(3, 80, 60, 3)):
    return rng.uniform(0.2, 0.8, shape)


@pytest.mark.parametrize("shape", [(2, 80, 60, 3), (2, 64, 90, 1)])
def test_copies_are_plain_relit_and_damaged(rng, shape):
    images = make_images(rng, shape)
    copies, masks = make_probes(images, 3, np.random.RandomState(SEED))
    assert copies.shape == (10, *shape[1:])
    assert masks.any(axis=(1, 2)).tolist() == [False] * 4 + [True] * 6
    np.testing.assert_allclose(copies[:2], images, rtol=1e-6)
    assert copies.min() >= 0
    assert copies.max() <= 1
    light = np.abs(copies[2:4] - images)  # everywhere and slowly
    assert 0.001 < light.mean() < 0.1
    assert light.max() < 0.15
    change = np.abs(copies[4:] - np.tile(images, (3, 1, 1, 1))).max(axis=3)
    assert change[masks[4:]].min() > 0.02
    assert change[~masks[4:]].max() < 0.04


def test_a_wider_scale_is_taken_for_0_to_1(rng):
    images = make_images(rng)
    images[0, 0, 0] = [0, 0.5, 1]
    copies, masks = make_probes(images, 2, np.random.RandomState(SEED))
    wide, same = make_probes(4 * images - 2, 2, np.random.RandomState(SEED))
    np.testing.assert_allclose(wide, 4 * copies - 2, atol=1e-5)
    np.testing.assert_array_equal(same, masks)


def test_defects_differ_in_size_and_strength_and_leave_the_images_alone(rng):
    images = make_images(rng, (1, 128, 128, 3))
    before = images.copy()
    copies, masks = make_probes(images, 60, np.random.RandomState(0))
    np.testing.assert_array_equal(images, before)
    areas = masks[2:].mean(axis=(1, 2))
    assert areas.min() < 0.005
    assert 0.05 < areas.max() < 0.5
    change = np.abs(copies[2:] - images).max(axis=(1, 2, 3))
    assert change.min() < 0.15
    assert change.max() > 0.5


def test_images_of_another_size_get_the_same_defects(rng):
    small = np.repeat(np.repeat(make_images(rng, (4, 32, 32, 1)), 4, 1), 4, 2)
    large = np.repeat(np.repeat(small, 2, 1), 2, 2)
    areas = [
        make_probes(x, 4, np.random.RandomState(0))[1].mean(axis=(1, 2))
        for x in (small, large)
    ]
    ratio = areas[1][8:] / areas[0][8:]
    assert 0.9 < np.median(ratio) < 1.1
    assert np.mean((ratio > 0.5) & (ratio < 2)) > 0.8


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_one_constant_image_gets_defects(value):
    image = np.full((1, 40, 40, 1), value)
    _, masks = make_probes(image, 5, np.random.RandomState(SEED))
    assert masks[2:].any(axis=(1, 2)).all()
