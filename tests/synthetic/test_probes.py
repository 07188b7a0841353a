import numpy as np
import pytest
from settings import SEED

from skpatchsvdd._synthetic.defects import DEFECTS
from skpatchsvdd._synthetic.probes import change_light, damage, make_probes


def make_images(rng, shape=(3, 80, 60, 3)):
    return rng.uniform(0.2, 0.8, shape)


@pytest.mark.parametrize("shape", [(2, 80, 60, 3), (2, 64, 90, 1)])
def test_copies_are_plain_relit_and_damaged(rng, shape):
    images = make_images(rng, shape)
    copies, labels = make_probes(images, 3, np.random.RandomState(SEED))
    assert copies.shape == (10, *shape[1:])
    assert copies.dtype == np.float32
    assert labels.tolist() == [1] * 4 + [-1] * 6
    np.testing.assert_allclose(copies[:2], images, rtol=1e-6)
    assert copies.min() >= 0
    assert copies.max() <= 1


def test_a_wider_scale_is_taken_for_0_to_1(rng):
    images = make_images(rng)
    images[0, 0, 0] = [0, 0.5, 1]
    copies, _ = make_probes(images, 2, np.random.RandomState(SEED))
    wide, _ = make_probes(4 * images - 2, 2, np.random.RandomState(SEED))
    np.testing.assert_allclose(wide, 4 * copies - 2, atol=1e-5)


@pytest.mark.parametrize("kind", DEFECTS)
def test_defects_change_a_part_of_the_image(rng, kind):
    image = make_images(rng)[0]
    before = image.copy()
    for seed in range(5):
        change = np.abs(damage(image, kind, np.random.RandomState(seed)) - image)
        changed = change.max(axis=2) > 1e-3
        assert 5 < changed.sum() < 0.5 * changed.size
    np.testing.assert_array_equal(image, before)


def test_defects_have_several_sizes():
    image = np.full((400, 400, 3), 0.5)
    sizes = [
        np.any(damage(image, "hole", np.random.RandomState(i)) != 0.5, axis=2).sum()
        for i in range(20)
    ]
    assert max(sizes) > 5 * min(sizes)


def test_light_changes_everywhere_and_slowly(rng):
    image = make_images(rng)[0]
    change = change_light(image, np.random.RandomState(SEED)) - image
    assert 0.001 < np.abs(change).mean() < 0.1
    assert np.abs(change).max() < 0.15
