import numpy as np
import pytest
import torch

from skpatchsvdd._training import crops
from skpatchsvdd._training.crops import CropSampler, crop_size


@pytest.fixture
def coordinates():
    """One image of 200 x 160 whose channels are the row and the column, in 1/256."""
    rows, cols = np.indices((200, 160), dtype=np.float32) / 256
    return torch.from_numpy(np.stack([rows, cols], axis=2)[None])


def make_sampler(images, mean=None, patch_size=64, light=1.0, seed=0):
    mean = torch.zeros(images.shape[1:]) if mean is None else mean
    generator = torch.Generator().manual_seed(seed)
    return CropSampler(images, mean, generator, patch_size, light)


@pytest.fixture
def quiet(monkeypatch):
    """Neither other light nor noise."""
    monkeypatch.setattr(crops, "relight", lambda images, draws: images)
    monkeypatch.setattr(crops, "add_noise", lambda windows, draws: windows)


@pytest.mark.parametrize(
    ("image_size", "patch_size", "expected"),
    [
        ((256, 300), 64, 128),
        ((400, 300), 128, 256),
        ((96, 200), 64, 94),
        ((64, 64), 64, 64),
    ],
)
def test_crops_are_two_patches_wide_and_leave_room_to_shift(
    image_size, patch_size, expected
):
    assert crop_size(image_size, patch_size) == expected


def test_second_view_is_shifted(coordinates, quiet):
    *views, is_damaged, _ = make_sampler(coordinates).crops(300, False)
    first, second = ((x[:, :, 0, 0] * 256).round().long() for x in views)
    shifts = {tuple(s) for s in (second - first).tolist()}
    assert shifts == {(i, j) for i in range(-2, 3) for j in range(-2, 3)}
    assert first.amin(dim=0).tolist() == [0, 0]
    assert first.amax(dim=0).tolist() == [200 - 128, 160 - 128]
    assert second.min() >= 0
    assert not is_damaged.any()


def test_second_view_has_defects(coordinates, quiet):
    # The same draws come first, with and without defects.
    first, second, is_damaged, _ = make_sampler(coordinates).crops(50)
    intact = make_sampler(coordinates).crops(50, False)
    assert torch.equal(first, intact.first)
    differs = (second - intact.second).abs().amax(dim=1, keepdim=True) > 0.04
    assert torch.equal(is_damaged.bool(), differs)
    assert 0 < is_damaged.mean() < 0.3


def test_the_mean_image_is_subtracted_at_its_place(coordinates, quiet):
    sampler = make_sampler(coordinates, mean=coordinates[0])
    first, second, *_ = sampler.crops(10, False)
    assert not first.any()
    assert not second.any()


def test_views_have_their_own_light_and_noise():
    crops = make_sampler(torch.full((1, 150, 150, 1), 0.5)).crops(100, False)
    views = torch.cat(crops[:2])
    level = views.mean(dim=(1, 2, 3)).reshape(2, -1)
    assert abs(np.corrcoef(level)[0, 1]) < 0.3
    assert level.std() == pytest.approx(0.027, rel=0.2)
    noise = (views - views.mean(dim=(2, 3), keepdim=True)).std()
    assert noise.item() == pytest.approx(0.02, rel=0.02)


def test_bytes_are_scaled(rng, quiet):
    pixels = torch.from_numpy(rng.integers(0, 256, (2, 70, 70, 3), dtype=np.uint8))
    views = [
        torch.cat(make_sampler(images, light=0.3).crops(3)[:2])
        for images in (pixels, pixels.float() / 255)
    ]
    torch.testing.assert_close(*views)
