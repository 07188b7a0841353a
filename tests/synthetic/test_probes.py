import numpy as np
import pytest
from settings import SEED

from skpatchsvdd._synthetic import defects, make_probes


def make_images(rng, shape=(3, 80, 60, 3)):
    return rng.uniform(0.2, 0.8, shape)


@pytest.mark.parametrize("shape", [(2, 80, 60, 3), (2, 64, 90, 1)])
def test_copies_are_plain_relit_and_damaged(rng, shape):
    images = make_images(rng, shape)
    copies, labels = make_probes(images, 3, np.random.RandomState(SEED))
    assert labels.tolist() == [1] * 4 + [-1] * 6
    np.testing.assert_allclose(copies[:2], images, rtol=1e-6)
    assert copies.min() >= 0
    assert copies.max() <= 1
    light = np.abs(copies[2:4] - images)  # everywhere and slowly
    assert 0.001 < light.mean() < 0.1
    assert light.max() < 0.15


def test_a_wider_scale_is_taken_for_0_to_1(rng):
    images = make_images(rng)
    images[0, 0, 0] = [0, 0.5, 1]
    copies, _ = make_probes(images, 2, np.random.RandomState(SEED))
    wide, _ = make_probes(4 * images - 2, 2, np.random.RandomState(SEED))
    np.testing.assert_allclose(wide, 4 * copies - 2, atol=1e-5)


def test_defects_of_every_kind_change_a_part_of_the_image(rng):
    images = make_images(rng, (1, 80, 60, 3))
    before = images.copy()
    copies, _ = make_probes(images, 5 * len(defects.DEFECTS), np.random.RandomState(0))
    changed = np.abs(copies[2:] - images).max(axis=3) > 1e-3
    n_changed = changed.sum(axis=(1, 2))
    assert n_changed.min() > 5
    assert n_changed.max() < 0.5 * 80 * 60
    np.testing.assert_array_equal(images, before)


def test_defects_have_several_sizes(monkeypatch):
    monkeypatch.setattr(defects, "DEFECTS", {"hole": defects.DEFECTS["hole"]})
    image = np.full((1, 400, 400, 3), 0.5)
    copies, _ = make_probes(image, 20, np.random.RandomState(SEED))
    sizes = (copies[2:] != 0.5).any(axis=3).sum(axis=(1, 2))
    assert max(sizes) > 5 * min(sizes)
