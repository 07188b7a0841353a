import numpy as np
import pytest
import torch
from reference import damp_slow_changes
from settings import SEED

from skpatchsvdd._encoding.dense import REACH, damp_light, damp_windows
from skpatchsvdd._training.crops import relight
from skpatchsvdd._utils import Draws


@pytest.fixture
def images(rng):
    return torch.from_numpy(rng.random((2, 3, 90, 70), dtype=np.float32))


@pytest.mark.parametrize("kept", [0.0, 0.3, 1.0])
def test_damping_equals_the_plain_way(images, kept):
    expected = damp_slow_changes(images.permute(0, 2, 3, 1).numpy(), kept)
    damped = damp_light(images, kept).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(damped, expected, atol=1e-5)


def test_windows_are_parts_of_the_damped_images(images):
    size = 32
    corners = torch.tensor([[0, 38], [58, 0]])  # at all four edges
    padded = torch.nn.functional.pad(images, (REACH,) * 4, value=7.0)
    windows = torch.stack(
        [
            x[:, i : i + size + 2 * REACH, j : j + size + 2 * REACH]
            for x, (i, j) in zip(padded, corners.tolist(), strict=True)
        ]
    )
    damped = damp_windows(windows, corners, (90, 70), 0.3)
    whole = damp_light(images, 0.3)
    for x, y, (i, j) in zip(damped, whole, corners.tolist(), strict=True):
        torch.testing.assert_close(x, y[:, i : i + size, j : j + size])


def test_relighting_adds_one_level_to_each_image(images):
    relit = relight(images, Draws(torch.Generator().manual_seed(SEED)))
    levels = (relit - images).flatten(1)
    torch.testing.assert_close(levels, levels[:, :1].expand_as(levels))
    assert 0 < levels.abs().max() <= 0.03 + 1e-6
    assert levels[0, 0] != levels[1, 0]
