import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from settings import SEED

from skpatchsvdd import Inspection, PatchSVDD
from skpatchsvdd._bank import collect as collecting
from skpatchsvdd._bank.collect import collect_banks, rows_to_keep
from skpatchsvdd._encoding import positions
from skpatchsvdd._encoding.dense import DenseEncoder
from skpatchsvdd._encoding.positions import find_units
from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._images.arrays import check_images
from skpatchsvdd.datasets import make_textures

QUICK = {"embedding_dim": 8, "patch_size": 32, "max_iter": 0, "random_state": SEED}


@pytest.fixture
def images():
    return make_textures(6, image_size=64, random_state=SEED).images


def make_dense(strides=(8,)):
    encoder = make_encoder(
        "hierarchical", 3, 8, 32, torch.Generator().manual_seed(SEED)
    )
    center = np.full((1, 1, 1), 0.5, dtype=np.float32)
    return DenseEncoder(encoder, (64, 64), center, 0.3, strides, torch.device("cpu"))


def collect(images, bank_size, unit=0.0):
    rng = np.random.RandomState(0)
    dense = make_dense()
    return dense, collect_banks(dense, check_images(images), [unit], bank_size, rng)[0]


@pytest.mark.parametrize("unit", [0.0, 2.0])
def test_a_whole_bank_is_all_features_image_after_image(images, unit):
    dense, bank = collect(images, None, unit)
    features = dense.encode_stack(check_images(images))
    expected = dense.add_positions(features, [unit])[0].flatten(0, 2).numpy()
    np.testing.assert_array_equal(bank.rows, expected)
    np.testing.assert_array_equal(bank.owners, np.arange(6).repeat(25))


def test_a_part_of_a_bank_is_some_of_its_rows(images):
    _, whole = collect(images, None)
    _, bank = collect(images, 40)
    assert len(bank.rows) == 40
    assert (np.diff(bank.owners) >= 0).all()
    for row, owner in zip(bank.rows, bank.owners, strict=True):
        assert (whole.rows[whole.owners == owner] == row).all(axis=1).any()


@pytest.mark.parametrize(
    ("bank_size", "expected"),
    [(None, 1000), (10, 10), (5000, 1000), (0.25, 250), (1.0, 1000), (1e-9, 1)],
)
def test_rows_to_keep(bank_size, expected):
    assert rows_to_keep(bank_size, 1000, 64) == expected


def test_a_bank_of_unspecified_size_is_bounded(monkeypatch):
    monkeypatch.setattr(collecting, "MAX_BYTES", 4 * 64 * 300)
    assert rows_to_keep(None, 1000, 64) == 300
    assert rows_to_keep(None, 200, 64) == 200


def test_units_come_from_some_of_the_images(images, monkeypatch):
    monkeypatch.setattr(positions, "_N_COMPARED", 3)
    seen = []
    monkeypatch.setattr(
        positions,
        "find_unit",
        lambda features, *args: seen.append(features.shape) or 1.5,
    )
    stack = check_images(images)
    assert find_units(make_dense(), stack, "auto", np.random.RandomState(0)) == [1.5]
    monkeypatch.setattr(positions, "_COMPARED_BYTES", 2 * 4 * 5 * 5 * 8)
    find_units(make_dense(), stack, "auto", np.random.RandomState(0))
    assert seen == [(3, 5, 5, 8), (2, 5, 5, 8)]
    assert find_units(make_dense(), stack, 0, None) == [0.0]


@pytest.mark.parametrize(("bank_size", "kept"), [(30, 30), (0.1, 49), (None, 486)])
def test_bank_size_is_obeyed(images, bank_size, kept):
    est = PatchSVDD(encoder="hierarchical", bank_size=bank_size, **QUICK).fit(images)
    assert est.bank_size_ == {32: kept}  # of six images of 9 x 9 patches
    np.testing.assert_array_equal(est.score_samples(images), est.training_scores_)


@pytest.mark.wide
def test_a_covering_part_tells_much_of_the_whole():
    train = make_textures(6, image_size=64, random_state=SEED).images
    test = make_textures(8, image_size=64, anomaly_fraction=0.5, random_state=SEED + 1)
    options = QUICK | {"inspection": Inspection(relative_weight=0)}
    whole, part, tiny = (
        PatchSVDD(encoder="hierarchical", bank_size=size, **options)
        .fit(train)
        .anomaly_map(test.images)
        for size in (None, 0.1, 0.002)
    )
    likeness = spearmanr(whole[:, ::8, ::8].ravel(), part[:, ::8, ::8].ravel())
    unlikeness = spearmanr(whole[:, ::8, ::8].ravel(), tiny[:, ::8, ::8].ravel())
    assert likeness.statistic > unlikeness.statistic + 0.2
    assert (part >= whole * (1 - 1e-4)).all()  # a part is never nearer than the whole


@pytest.mark.parametrize("bank_size", [0, -1, 0.0, 1.5, "all"])
def test_nonsense_bank_sizes_are_refused(bank_size, images):
    with pytest.raises(ValueError, match="'bank_size' parameter"):
        PatchSVDD(encoder="hierarchical", bank_size=bank_size, **QUICK).fit(images)


def test_a_bank_of_one_patch_still_scores_its_own_image(images):
    est = PatchSVDD(encoder="hierarchical", bank_size=1, **QUICK).fit(images)
    assert np.isfinite(est.training_scores_).all()
