"""Known defects as fillings of synthetic ones."""

import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd import Training
from skpatchsvdd._training import training
from skpatchsvdd._training.crops import CropSampler, Fillings, draw_places
from skpatchsvdd._utils import Draws

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def make_draws(seed=SEED, device="cpu"):
    return Draws(torch.Generator(device).manual_seed(seed))


def make_red(n=300, size=64):
    """Normal images: red, and nothing else."""
    images = torch.zeros(n, 3, size, size)
    images[:, 0] = 0.5
    return images


def make_fillings(masks, size=64, device="cpu"):
    """Defective images: red, and blue where the mask is, in bytes."""
    pixels = np.zeros((len(masks), size, size, 3), dtype=np.uint8)
    pixels[..., 0] = 128
    for image, mask in zip(pixels, masks, strict=True):
        image[mask] = (0, 0, 255)
    places = draw_places(masks, np.random.RandomState(SEED))
    tensors = (torch.from_numpy(x).to(device) for x in (pixels, places))
    return Fillings(*tensors)


def make_mask(top, bottom, left, right, size=64):
    mask = np.zeros((size, size), dtype=bool)
    mask[top:bottom, left:right] = True
    return mask


def is_blue(images):
    """Where a known defect shows through: no tint of red is more blue than red."""
    return images[:, 2] > images[:, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_defective_pixel_comes_to_the_middle(device):
    known = make_fillings(
        [make_mask(0, 1, 0, 1), make_mask(40, 44, 60, 64)], 64, device
    )
    draws = make_draws(device=device)
    centers = draws.uniform(0, 80, (50, 2))
    cut = known.cut((50, 3, 80, 80), centers, draws)
    rows, cols = centers.long().T
    middle = cut[torch.arange(50), :, rows, cols]
    assert torch.equal(middle.cpu(), torch.tensor([0.0, 0, 1]).expand(50, 3))


def test_what_is_cut_is_the_image_flipped_and_mirrored_at_its_edges():
    rows, cols = np.indices((5, 7), dtype=np.float32)
    pixels = torch.from_numpy(np.stack([rows, cols], axis=2)[None])
    known = Fillings(pixels, torch.tensor([[[1, 5]]]))
    centers = torch.full((60, 2), 3.0)
    cut = known.cut((60, 2, 8, 6), centers, make_draws())
    found = {(tuple(x[0, :, 0].tolist()), tuple(x[1, 0].tolist())) for x in cut}
    down, up = (1, 0, 0, 1, 2, 3, 4, 4), (4, 3, 2, 1, 0, 0, 1, 2)
    right, left = (2, 3, 4, 5, 6, 6), (5, 6, 6, 5, 4, 3)
    assert found == {(x, y) for x in (down, up) for y in (right, left)}


def test_half_of_the_fillings_are_known_ones():
    known = make_fillings([make_mask(0, 64, 0, 64)])
    n = 2000
    mixed = known.replace_some(make_red(n, 8), torch.full((n, 2), 4.0), make_draws())
    is_known = is_blue(mixed).flatten(1)
    assert torch.equal(is_known.any(dim=1), is_known.all(dim=1))  # whole or not at all
    assert 0.45 < is_known[:, 0].float().mean() < 0.55


def test_all_known_defects_are_drawn_alike():
    rows, _ = np.indices((9, 9), dtype=np.float32)
    pixels = torch.arange(4.0)[:, None, None, None].expand(4, 9, 9, 1)
    masks = [rows < n for n in (1, 2, 5, 9)]
    places = torch.from_numpy(draw_places(masks, np.random.RandomState(SEED)))
    cut = Fillings(pixels, places).cut(
        (2000, 1, 3, 3), torch.ones(2000, 2), make_draws()
    )
    share = torch.bincount(cut[:, 0, 0, 0].long(), minlength=4) / 2000
    assert share.min() > 0.2
    assert share.max() < 0.3


@pytest.mark.parametrize("device", DEVICES)
def test_crops_say_where_known_defects_are(device):
    images = make_red(2, 64).permute(0, 2, 3, 1).to(device)
    known = make_fillings([make_mask(0, 64, 0, 64)], 64, device)
    generator = torch.Generator(device).manual_seed(SEED)
    center = torch.zeros((), device=device)
    sampler = CropSampler(images, center, generator, 32, 1.0, fillings=known)
    crops = sampler.crops(40)
    blue = is_blue(crops.second)
    assert blue.any()
    assert crops.is_damaged[:, 0][blue].mean() > 0.95


# From here on: what `fit` makes of them.


@pytest.fixture
def told(normal, mixed):
    """Images, labels and masks, with two known defects of which it is said where."""
    chosen = np.flatnonzero(mixed.labels == -1)[:2]
    X = np.concatenate([normal, mixed.images[chosen]])
    y = np.array([1] * len(normal) + [-1] * 2)
    return X, y, [None] * len(normal) + list(mixed.masks[chosen])


def weights_of(est):
    return [x.detach().numpy().tobytes() for x in est.encoder_.state_dict().values()]


def test_masks_of_known_defects_alone_teach_the_encoder(quick, normal, told):
    X, y, masks = told
    n = len(normal)
    plain = weights_of(quick.fit(normal))
    for given in (
        (normal, ["good"] * n, [None] * n),
        (normal, None, np.zeros((n, 48, 48))),
        (X, y, None),
    ):
        assert weights_of(quick.fit(given[0], given[1], masks=given[2])) == plain
    taught = weights_of(quick.fit(X, y, masks=masks))
    assert taught != plain
    assert np.isfinite(quick.score_samples(X)).all()
    assert weights_of(quick.fit(X, y, masks=masks)) == taught  # a fit repeats
    assert weights_of(quick.fit(X, y, masks=[*masks[:-1], None])) != plain


@pytest.mark.parametrize(
    "changes",
    [
        {"max_iter": 0},
        {"training": Training(damage_weight=0, batch_size=4)},
        {"training": Training(method="paper", batch_size=4)},
    ],
)
def test_where_no_synthetic_defects_are_drawn_nothing_changes(
    quick, normal, told, changes
):
    X, y, masks = told
    quick.set_params(**changes)
    weights = weights_of(quick.fit(normal))
    assert weights_of(quick.fit(X, y, masks=masks)) == weights


@pytest.fixture
def seen(monkeypatch):
    """The masks that places are drawn of, at each call."""
    masks, original = [], training.draw_places

    def spy(own, rng):
        masks.append(own)
        return original(own, rng)

    monkeypatch.setattr(training, "draw_places", spy)
    return masks


@pytest.mark.parametrize("kind", ["pixel", "all", "one"])
def test_odd_masks_train(quick, told, kind):
    X, y, masks = told
    one = np.zeros(X.shape[1:3])
    one[47, 0] = 1
    odd = {"pixel": [one, one], "all": [np.ones_like(one)] * 2, "one": [masks[-2]]}
    n = len(X) - 2 + len(odd[kind])
    masks = [*masks[:-2], *odd[kind]]
    quick.fit(X[:n], y[:n], masks=masks)
    assert all(np.isfinite(curve).all() for curve in quick.loss_curve_.values())


def test_masks_are_brought_to_the_size_of_inspection(quick, told, seen):
    X, y, masks = told
    X = [*X[:-1], np.repeat(X[-1], 2, axis=0)]  # 96 x 48
    mask = np.zeros((96, 48))
    mask[80:96, :12] = 1
    quick.set_params(image_size=(48, 48)).fit(X, y, masks=[*masks[:-1], mask])
    ((_, other),) = seen
    assert other.shape == (48, 48)
    np.testing.assert_array_equal(other, make_mask(40, 48, 0, 12, 48))


def test_what_roi_hides_fills_nothing(quick, told, seen, monkeypatch):
    X, y, masks = told
    X[-1, :, :24] = 77
    masks[-2:] = [make_mask(0, 40, 0, 48, 48), make_mask(10, 40, 10, 38, 48)]
    roi = make_mask(0, 48, 24, 48, 48)
    loaded = []
    original = training.Fillings
    monkeypatch.setattr(
        training, "Fillings", lambda *args: loaded.append(args) or original(*args)
    )
    quick.set_params(roi=roi).fit(X, y, masks=masks)
    (own,), ((pixels, places),) = seen, loaded
    assert all((mask <= roi).all() for mask in own)
    assert (places[..., 1] >= 24).all()
    assert (pixels[:, :, :24] == 128).all()  # grey


def test_memory_is_limited(quick, told, seen, monkeypatch):
    X, y, masks = told
    X, y = np.concatenate([X, 255 - X[-2:]]), np.append(y, [-1, -1])
    monkeypatch.setattr(training, "_TRAINING_BYTES", 1)
    quick.fit(X, y, masks=[*masks, *masks[-2:]])
    assert len(seen[0]) == 2


@pytest.mark.parametrize("has_masks", [True, False])
def test_what_has_filled_defects_does_not_calibrate_later(quick, told, has_masks):
    X, y, masks = told
    groups = np.arange(len(X)) // 2
    quick.fit(X, y, groups=groups, masks=masks if has_masks else None)
    # Both are called normal now: a group of their own, which the encoder has seen.
    quick.set_params(warm_start=True, max_iter=0).fit(X, groups=groups)
    assert (quick.calibrates_[-2:] != has_masks).all()
