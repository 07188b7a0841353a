import numpy as np
import pytest
import torch
from reference import spread

from skpatchsvdd._encoding.networks import grid_shape
from skpatchsvdd._scoring.maps import _spread_axis, join_maps, spread_scores


@pytest.mark.parametrize(
    ("patch_size", "stride", "size"),
    [(32, 4, (48, 40)), (32, 16, (65, 50)), (64, 16, (90, 71)), (32, 40, (80, 115))],
)
def test_spread_equals_the_plain_loop(rng, patch_size, stride, size):
    scores = rng.random((2, *grid_shape(size, patch_size, stride)), dtype=np.float32)
    maps = spread_scores(torch.from_numpy(scores), patch_size, stride, size)
    for one_map, one in zip(maps.numpy(), scores, strict=True):
        expected = spread(one, patch_size, stride, size)
        np.testing.assert_allclose(one_map, expected, rtol=1e-5)


def test_between_patches_side_by_side_scores_are_interpolated():
    (rows,) = spread_scores(torch.tensor([[[1.0, 3.0]]]), 8, 8, (8, 16))
    steps = 1 + (np.arange(8) + 0.5) / 4
    for row in rows.tolist():
        assert row == pytest.approx([1.0] * 4 + steps.tolist() + [3.0] * 4)


def test_join_maps_by_hand():
    maps = [torch.tensor([[[2.0, 3.0]]]), torch.tensor([[[5.0, 7.0]]])]
    assert join_maps(maps, [1, 1]).tolist() == [[[10, 21]]]
    assert join_maps(maps, [2, 1])[0, 0, 1] == pytest.approx(9 * 7)


def test_what_a_cuda_graph_reads_is_never_dropped():
    args = 8, 4, torch.device("cpu")
    first = _spread_axis(32, *args)
    for length in range(33, 100):
        _spread_axis(length, *args)
    assert _spread_axis(32, *args) is first
