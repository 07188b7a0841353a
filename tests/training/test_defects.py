import torch

from skpatchsvdd._training.crops import _MOVES, _smooth, _Source, damage_images
from skpatchsvdd._utils import Draws


def make_draws(seed=0):
    return Draws(torch.Generator().manual_seed(seed))


def make_images(n=200, size=(96, 80), seed=1):
    return torch.rand(n, 2, *size, generator=torch.Generator().manual_seed(seed))


def test_almost_every_image_is_changed_and_defects_lie_everywhere():
    images = make_images()
    changed = (damage_images(images, make_draws()) != images).any(dim=1).float()
    share = changed.mean(dim=(1, 2))
    assert (share > 0).float().mean() > 0.95  # some shapes lie over the edge
    assert share.max() < 0.6
    assert 0.02 < share.mean() < 0.15
    where = changed.mean(dim=0)
    assert where.min() > 0
    quarters = where.unfold(0, 48, 48).unfold(1, 40, 40).mean(dim=(2, 3))
    assert quarters.max() < 2 * quarters.min()


def test_even_images_get_tints_alone():
    even = torch.full((400, 1, 64, 64), 0.5)
    damaged = damage_images(even, make_draws())
    change = (damaged - even).abs().amax(dim=(1, 2, 3))
    seen = (change > 0.02).float().mean()
    # One shape in four is a tint, and there are two shapes on average.
    assert 0.3 < seen < 0.55
    assert (damaged < 0.48).any()
    assert (damaged > 0.52).any()


def test_pieces_are_rolled_flipped_blurred_and_moved_images():
    images = make_images(9, size=(20, 26))
    expected = [
        images.roll(1, dims=0),
        images.flip(2),
        images.flip(3),
        images.flip((2, 3)),
        images.roll((10, 8), dims=(2, 3)),
        _smooth(images),
        *(images.roll(move, dims=(2, 3)) for move in _MOVES),
    ]
    for kinds in (torch.arange(9), torch.arange(9).flip(0)):
        pieces = _Source(images)._cut_pieces(kinds)
        for i, kind in enumerate(kinds):
            assert torch.equal(pieces[i], expected[kind][i])
