"""What the comparison is trained on, and how it is measured."""

import numpy as np
import pytest
import torch
from _comparing import _whiten, compare
from _comparisons import draw_comparisons, draw_sets
from procedural import make_materials
from settings import SEED

from skpatchsvdd import PatchSVDD
from skpatchsvdd._comparison import arrange
from skpatchsvdd._encoding import ProceduralEncoder
from skpatchsvdd._scoring.inspect import encode_each, search
from skpatchsvdd._training.embedding import whitening_matrix


@pytest.fixture(scope="module")
def sets():
    generator = torch.Generator().manual_seed(SEED)
    return draw_sets(generator, 6, make_materials("cpu"))


@pytest.fixture(scope="module")
def drawn(sets):
    return draw_comparisons(torch.Generator().manual_seed(SEED), sets, 3)


def test_the_twin_of_a_specimen_is_the_same_but_for_some_shapes(sets):
    differs = (sets[:, 0] != sets[:, -1]).any(dim=1).float().mean(dim=(1, 2))
    assert differs.max() > 0
    assert differs.median() < 0.5
    others = (sets[:, 0] != sets[:, 1]).any(dim=1).float().mean(dim=(1, 2))
    assert (others > differs).sum() >= 4


def test_comparisons_are_images_and_where_they_are_damaged(sets, drawn):
    again = draw_comparisons(torch.Generator().manual_seed(SEED), sets, 3)
    for x, y in zip(drawn, again, strict=True):
        torch.testing.assert_close(x, y)
        assert x.min() >= 0
        assert x.max() <= 1
    share = (drawn.mask > 0.5).float().mean(dim=(1, 2))
    assert (share > 0).any()
    assert share.max() < 0.6


def test_features_are_whitened_as_the_estimator_does():
    generator = torch.Generator().manual_seed(SEED)
    spread = torch.logspace(0, -4, 12)
    features = torch.randn(2, 5, 6, 7, 12, generator=generator) * spread
    for x, found in zip(features, _whiten(features), strict=True):
        rows = x[1:].reshape(-1, 12).double()
        rows = rows - rows.mean(dim=0)
        matrix = whitening_matrix(rows.T @ rows / len(rows), 4, 12).float()
        expected = torch.pdist(x.reshape(-1, 12) @ matrix.T)
        distances = torch.pdist(found.reshape(-1, 12))
        torch.testing.assert_close(distances, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_images_are_compared_as_the_estimator_does(drawn):
    told = compare(ProceduralEncoder.make_pretrained(3, (160, 160)), drawn)
    for i in range(2):
        normal, query = (
            (255 * x).round().byte().permute(0, 2, 3, 1).numpy()
            for x in (drawn.normal[:, i], drawn.query[i : i + 1])
        )
        est = PatchSVDD(encoder="procedural", random_state=SEED, device="cpu")
        bank = est.fit(normal, groups=None)._on_device()
        encoded = next(encode_each(est._check_scored_images(query), bank))
        found = search(encoded, bank, bank.scales)
        for k, cut in enumerate(zip(est.patch_sizes_, est.strides_, strict=True)):
            measures = found.distances[k], found.variation[k], bank.typical[k]
            inputs = arrange(*measures, *cut, query.shape[1:3])
            # The estimator compares with a sample of the patches.
            apart = (inputs - told[k][i : i + 1]).abs()
            assert np.quantile(apart.numpy(), 0.99) < 0.05
