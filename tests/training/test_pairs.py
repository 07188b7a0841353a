import numpy as np
import pytest
import torch

from skpatchsvdd._encoding.scales import SCALES
from skpatchsvdd._training import paper
from skpatchsvdd._training.losses import DIRECTIONS, draw_pairs
from skpatchsvdd._training.paper import PairSampler
from skpatchsvdd._utils import Draws


def make_sampler(pixels, seed=0):
    pixels = torch.as_tensor(pixels)
    mean = torch.zeros(pixels.shape[1:])
    return PairSampler(pixels, mean, torch.Generator().manual_seed(seed))


@pytest.fixture
def coordinates():
    """One image of 200 x 160 whose channels are the row and the column, in 1/256."""
    rows, cols = np.indices((200, 160), dtype=np.float32) / 256
    return np.stack([rows, cols], axis=2)[None]


def corners(patches):
    """Top left corner of patches of coordinates, in pixels."""
    return (patches[:, :, 0, 0] * 256).numpy()


def test_crop_subtracts_the_mean_at_its_place(rng):
    pixels = rng.integers(0, 256, (3, 40, 50, 2), dtype=np.uint8)
    mean = torch.from_numpy(rng.random((40, 50, 2), dtype=np.float32))
    sampler = PairSampler(torch.from_numpy(pixels), mean, torch.Generator())
    index, corner = torch.tensor([2, 0]), torch.tensor([[1, 7], [8, 18]])
    patches = sampler.crop(index, corner, 32)
    expected = np.float32(pixels[2, 1:33, 7:39]) / 255 - mean[1:33, 7:39].numpy()
    np.testing.assert_array_equal(patches[0], expected.transpose(2, 0, 1))
    expected = np.float32(pixels[0, 8:40, 18:50]) / 255 - mean[8:40, 18:50].numpy()
    np.testing.assert_array_equal(patches[1], expected.transpose(2, 0, 1))


@pytest.mark.parametrize("patch_size", [32, 64])
def test_position_pairs_lie_in_their_direction(coordinates, monkeypatch, patch_size):
    sampler = make_sampler(coordinates)
    monkeypatch.setattr(paper, "add_noise", lambda patches, draws: patches)
    first, second, direction = sampler.position_pairs(1000, patch_size)
    step = corners(second) - corners(first)
    sign = np.array(DIRECTIONS)[direction.numpy()]
    assert set(direction.tolist()) == set(range(8))
    limit = np.array([200, 160]) - patch_size
    inside = ((corners(second) > 0) & (corners(second) < limit)).all(axis=1)
    length = np.abs(step[inside])
    moves = sign[inside] != 0
    assert (np.sign(step[inside]) == sign[inside]).all()
    assert (length[~moves] == 0).all()
    assert length[moves].min() == 3 * patch_size // 4
    assert length[moves].max() == patch_size - 1
    # The others were clipped to the edge, never beyond it.
    assert (corners(second) >= 0).all()
    assert (corners(second) <= limit).all()


@pytest.mark.parametrize(("patch_size", "reach"), [(32, 1), (64, 2)])
def test_jitter_pairs_are_shifted_but_never_by_nothing(coordinates, patch_size, reach):
    first, second = make_sampler(coordinates).jitter_pairs(500, patch_size)
    limit = np.array([200, 160]) - patch_size
    inner = ((corners(first) > reach) & (corners(first) < limit - reach)).all(axis=1)
    shift = (corners(second) - corners(first))[inner].astype(int)
    seen = {tuple(s) for s in shift}
    reaches = range(-reach, reach + 1)
    assert seen == {(i, j) for i in reaches for j in reaches} - {(0, 0)}


def test_noise_shifts_colours_and_pixels():
    sampler = make_sampler(np.zeros((1, 32, 32, 3), dtype=np.float32))
    first, second, _ = sampler.position_pairs(500, 32)
    colour = first.mean(dim=(2, 3))
    assert colour.std().item() == pytest.approx(0.02, rel=0.1)
    pixels = first - first.mean(dim=(2, 3), keepdim=True)
    assert pixels.std().item() == pytest.approx(0.02, rel=0.02)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("patch_size", "stride"),
    sorted({(32, 4), (12, 8)} | {(k, scale.stride) for k, scale in SCALES.items()}),
)
@pytest.mark.parametrize("n_cells", [1, 2, 100])
def test_pairs_of_a_grid_overlap_and_are_apart(patch_size, stride, n_cells):
    draws = Draws(torch.Generator().manual_seed(0))
    size = patch_size + (n_cells - 1) * stride
    first, second, number = draw_pairs(50, 20, size, patch_size, stride, draws)
    assert (first[:, 0] == second[:, 0]).all()
    for cells in (first, second):
        assert cells[:, 1:].min() >= 0
        assert cells[:, 1:].max() < n_cells
    step, sign = (second - first)[:, 1:], torch.tensor(DIRECTIONS)[number]
    if n_cells == 1:
        assert not step.any()
        return
    assert torch.equal(step.sign(), sign)
    away = stride * step.abs()[sign != 0]
    assert away.max() < max(patch_size, stride + 1)
    if n_cells == 100:
        assert away.min() > 3 * patch_size / 4 - stride
