"""The network that compares, and what it is told."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd._comparison import Comparison, arrange, compare, fold_comparison
from skpatchsvdd._comparison.network import N_INPUTS, REACH
from skpatchsvdd._encoding import keep_pictures, show_pictures

MODULE = sys.modules[compare.__module__]


@pytest.fixture
def network():
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return fold_comparison(Comparison(norm=True)).requires_grad_(False)


def draw(n=1, rows=24, cols=20):
    rng = np.random.default_rng(SEED)
    pictures = rng.random((n, 3, rows, cols), dtype=np.float32)
    scales = rng.normal(size=(2, n, N_INPUTS, -(-rows // 4), -(-cols // 4)))
    return torch.from_numpy(pictures), list(torch.from_numpy(scales).float())


def test_scales_may_come_in_any_order(network):
    pictures, scales = draw()
    expected = network(pictures, scales)
    torch.testing.assert_close(network(pictures, scales[::-1]), expected)


def test_moving_all_by_a_cell_of_every_level_moves_the_answer(network):
    pictures, scales = draw(rows=160, cols=160)
    moved = pictures.roll((16, 16), (2, 3)), [x.roll((4, 4), (2, 3)) for x in scales]
    inner = (..., slice(72, 88), slice(72, 88))
    expected = network(pictures, scales).roll((16, 16), (2, 3))[inner]
    torch.testing.assert_close(network(*moved)[inner], expected, rtol=1e-4, atol=1e-4)


def test_folded_norms_tell_the_same():
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        network = Comparison(norm=True)
    inputs = draw(3)
    for _ in range(3):
        network(*inputs)  # other means than at first
    network.eval()
    torch.testing.assert_close(fold_comparison(network)(*inputs), network(*inputs))


def test_distances_are_told_as_logarithms_where_their_patches_lie():
    distances = torch.tensor([1.0, 2, 4, 8])[None, :, None].expand(1, 4, 3)
    usual = torch.full((1, 4, 3), 2.0)
    found = arrange(distances, usual, 0.5, patch_size=18, stride=8, image_size=(48, 40))
    assert found.shape == (1, N_INPUTS, 6, 5)
    # Patches have their middles at pixels 9, 17, 25 and 33.
    far = torch.log(torch.tensor([2.0, 2, 4, 8, 16, 16]))
    torch.testing.assert_close(found[0, 0], far[:, None].expand(6, 5))
    torch.testing.assert_close(found[0, 1], torch.log(torch.full((6, 5), 4.0)))
    torch.testing.assert_close(found[0, 2], found[0, 0] - found[0, 1])
    assert (found[0, 3] == np.log2(18 / 32).astype(np.float32)).all()


def test_no_distance_is_told_as_infinite():
    zero, huge = torch.zeros(1, 2, 2), torch.full((1, 2, 2), 1e30)
    for distances in (zero, huge):
        found = arrange(distances, torch.ones(1, 2, 2), 1.0, 16, 8, (24, 24))
        assert found.abs().max() == 4


def test_pictures_have_half_the_size():
    images = torch.rand(2, 3, 9, 8, generator=torch.Generator())
    shown = show_pictures(keep_pictures(images))
    for row, pixels in ((0, images[:, :, :2, :2]), (4, images[:, :, 8:, :2])):
        mean = pixels.mean(dim=(2, 3))
        torch.testing.assert_close(shown[:, :, row, 0], mean, rtol=0, atol=0.002)


def test_the_answer_depends_on_no_more_than_its_reach(network):
    pictures, scales = draw(rows=400, cols=400)
    middle = (0, 0, 200, 200)
    expected = network(pictures, scales)[middle]
    near, far = pictures.clone(), pictures.clone()
    near[:, :, 196:204, 196:204] += 1
    is_far = torch.ones(400, 400, dtype=torch.bool)
    is_far[200 - REACH : 201 + REACH, 200 - REACH : 201 + REACH] = False
    far[:, :, is_far] += 1
    others = [x.clone() for x in scales]
    for x in others:
        x[:, :, is_far[::4, ::4]] += 1
    assert network(near, scales)[middle] != expected
    torch.testing.assert_close(network(far, others)[middle], expected)


def test_tiles_tell_what_whole_pictures_do(network, monkeypatch):
    monkeypatch.setattr(MODULE, "load_shipped", lambda device: network)
    rng = np.random.default_rng(SEED)
    size, patch_size, stride = (702, 431), 16, 8
    dense = SimpleNamespace(
        image_size=size,
        device=torch.device("cpu"),
        compared=[0],
        patch_sizes=[patch_size],
        strides=[stride],
    )
    grid = tuple((x - patch_size) // stride + 1 for x in size)
    distances, usual = torch.from_numpy(rng.random((2, 1, *grid)).astype(np.float32))
    pictures = torch.from_numpy(rng.integers(256, size=(1, 1, 351, 216), dtype="uint8"))
    told = pictures, [distances], [usual], [0.5], dense
    expected = compare(*told)
    assert expected.shape == (1, *size)
    monkeypatch.setattr(MODULE, "_WHOLE_CELLS", 1000)
    monkeypatch.setattr(MODULE, "_TILE", 96)
    found = compare(*told)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
