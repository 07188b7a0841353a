"""What a training keeps in memory, and which images it looks at."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._images import check_images
from skpatchsvdd._parameters import resolve_options
from skpatchsvdd._training import training

CPU = torch.device("cpu")


def test_held_out_images_are_looked_at_up_to_a_bound():
    options = resolve_options(
        PatchSVDD(encoder="hierarchical", early_stopping=True).get_params(), CPU
    )
    options = replace(options, validation_fraction=0.3)
    for n_images in (20, 100_000):
        rng = np.random.RandomState(SEED)
        checked, trained = training.split_images(n_images, options, rng)
        assert len(checked) == min(0.3 * n_images, 100)
        assert len(trained) == 0.7 * n_images
        assert not np.isin(checked, trained).any()


@pytest.mark.parametrize("n_floats", [0, 1, 5])
def test_pixels_are_loaded_as_they_are(rng, n_floats, monkeypatch):
    monkeypatch.setattr(training, "_N_LOADED", 2)
    images = [rng.integers(256, size=(8, 9, 3), dtype=np.uint8) for _ in range(5)]
    for i in range(n_floats):
        images[-1 - i] = np.float32(images[-1 - i] / 255)
    stack = check_images(images)
    loaded = training._load_pixels(stack, CPU)
    np.testing.assert_array_equal(loaded.numpy(), stack.pixels)
    assert loaded.numpy().dtype == stack.pixels.dtype
