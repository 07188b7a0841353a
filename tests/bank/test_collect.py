import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from settings import SEED

from skpatchsvdd import Inspection, PatchSVDD
from skpatchsvdd._bank import collect as collecting
from skpatchsvdd._bank.collect import collect_banks, rows_to_keep
from skpatchsvdd._encoding.dense import DenseEncoder
from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._images.arrays import check_images
from skpatchsvdd.datasets import make_textures

QUICK = {"embedding_dim": 8, "patch_size": 32, "max_iter": 0, "random_state": SEED}


@pytest.fixture
def images():
    return make_textures(6, image_size=64, random_state=SEED).images


@pytest.mark.parametrize("unit", [0.0, 2.0])
def test_a_whole_bank_is_all_features_image_after_image(images, unit):
    generator = torch.Generator().manual_seed(SEED)
    encoder = make_encoder("hierarchical", 3, 8, 32, generator)
    center = np.full((1, 1, 1), 0.5, dtype=np.float32)
    dense = DenseEncoder(encoder, (64, 64), center, 0.3, (8,), torch.device("cpu"))
    rng, stack = np.random.RandomState(0), check_images(images)
    [bank] = collect_banks(dense, stack, [unit], None, rng)
    expected = dense.add_positions(dense.encode_stack(stack), [unit])[0]
    np.testing.assert_array_equal(bank.rows, expected.flatten(0, 2).numpy())
    np.testing.assert_array_equal(bank.owners, np.arange(6).repeat(25))


@pytest.mark.parametrize(("bank_size", "expected"), [(5000, 1000), (1e-9, 1)])
def test_rows_to_keep(bank_size, expected):
    assert rows_to_keep(bank_size, 1000, 64) == expected


def test_a_bank_of_unspecified_size_is_bounded(monkeypatch):
    monkeypatch.setattr(collecting, "MAX_BYTES", 4 * 64 * 300)
    assert rows_to_keep(None, 1000, 64) == 300
    assert rows_to_keep(None, 200, 64) == 200


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


def test_a_bank_of_one_patch_still_scores_its_own_image(images):
    est = PatchSVDD(encoder="hierarchical", bank_size=1, **QUICK).fit(images)
    assert np.isfinite(est.training_scores_).all()
