import numpy as np
import pytest
import torch
from settings import SEED

from skpatchsvdd._bank.collect import collect_banks
from skpatchsvdd._bank.exact import ExactIndex
from skpatchsvdd._bank.variation import Sampler, Variation
from skpatchsvdd._encoding.dense import DenseEncoder
from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._images.digests import list_digests
from skpatchsvdd._images.stack import stack_images
from skpatchsvdd._scoring import FittedBank, Inspector


def make_dense(kind, size, strides, light=0.3):
    encoder = make_encoder(kind, 3, 8, 64, torch.Generator().manual_seed(SEED))
    center = np.full((1, 1, 1), 0.5, dtype=np.float32)
    return DenseEncoder(encoder, size, center, light, strides, torch.device("cpu"))


class LooseIndex:
    """Exact distances, of which it first tells some that are too large."""

    gives_bounds = True

    def __init__(self, index, rng):
        self.index, self.rng = index, rng
        self.n_asked = self.n_decided = 0

    def query(self, features, left_out):
        exact = self.index.query(features, left_out)
        self.n_asked += exact.numel()
        loose = self.rng.choice(
            [1, 1.2, 2, 30], p=[0.9, 0.05, 0.04, 0.01], size=exact.shape
        )
        return exact * torch.from_numpy(loose.astype(np.float32))

    def decide(self, features, owner):
        self.n_decided += len(features)
        return self.index.query(features[None], [owner])[0]


@pytest.mark.parametrize("is_loose", [(True, True), (True, False)])
@pytest.mark.parametrize(("is_relative", "n_pixels"), [(False, 1), (True, 150)])
def test_scores_of_loose_distances_are_certain(rng, is_loose, is_relative, n_pixels):
    dense = make_dense("hierarchical", (112, 96), (4, 16))
    images = stack_images(rng.random((4, 112, 96, 3), dtype=np.float32))
    samplers = [Sampler(2, np.random.RandomState(SEED)) for _ in range(2)]
    banks = collect_banks(
        dense, images.take([0, 1]), [0, 0], None, np.random, samplers=samplers
    )
    exact = [ExactIndex(bank) for bank in banks]
    variations = None
    if is_relative:
        pairs = zip(samplers, exact, strict=True)
        variations = [Variation(x.result(), i, dense.device) for x, i in pairs]
    loose = [
        LooseIndex(index, rng) if flag else index
        for index, flag in zip(exact, is_loose, strict=True)
    ]
    known = list_digests(images.take([0, 1]))
    bank = FittedBank(
        setting=None,
        indexes=exact,
        units=[0, 0],
        known=known,
        variations=variations,
        score_pixels=n_pixels,
        relative_weight=0.4,
    )
    expected = Inspector(dense, bank).scores(images)
    inspector = Inspector(dense, bank.change(indexes=loose))
    scores = inspector.scores(images)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert loose[0].n_decided < 0.7 * loose[0].n_asked
    if n_pixels > 1:
        return
    maps = np.concatenate(list(inspector.maps(images)))
    top = -maps.max(axis=(1, 2))
    assert (top >= (1 + 1e-6) * expected).all()
    assert (top <= (1 - 1e-6) * expected).all()
