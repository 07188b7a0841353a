"""Kernels of a GPU: on one, or with Triton and TRITON_INTERPRET=1 step by step."""

import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import fused
from skpatchsvdd._bank.clusters import Clusters
from skpatchsvdd._bank.exact_gpu import make_gpu_search
from skpatchsvdd._bank.variation import PatchSample, Variation


def draw(rng, n, n_features=66):
    return (0.3 * rng.standard_normal((n, n_features))).astype(np.float32)


def make_clusters(rows):
    """Return what searches take."""
    found = Clusters(rows, 0)
    tensors = (torch.tensor(x) for x in (found.rows, found.centers))
    return *tensors, found.starts, np.arange(len(rows)) % 3


@pytest.mark.parametrize("n_features", [3, 16, 64, 66, 100, 130])
def test_fused_distances_equal_the_plain_loop(rng, kernel_device, n_features):
    rows, queries = draw(rng, 2500, n_features), draw(rng, 70, n_features)
    search = make_gpu_search(*make_clusters(rows), kernel_device)
    assert search.is_capturable
    found = search.query(torch.tensor(queries).to(kernel_device)[None], [-1])[0]
    expected = nearest_distances(queries, rows)
    np.testing.assert_allclose(found.cpu(), expected, rtol=1e-5)


def test_fused_search_that_errs_is_not_used(rng, kernel_device, monkeypatch):
    query = fused.FusedSearch.query
    monkeypatch.setattr(fused.FusedSearch, "query", lambda *args: 1.01 * query(*args))
    with pytest.warns(UserWarning, match="slower one"):
        found = make_gpu_search(*make_clusters(draw(rng, 1500)), kernel_device)
    assert not found.is_capturable


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n_features", [8, 16, 66, 128])
@pytest.mark.parametrize("left_out", [[-1, -1], [1, -1]])
def test_local_variation_is_the_same_on_a_gpu(rng, left_out, n_features):
    rows = draw(rng, 600, n_features).reshape(6, 100, -1)
    sample = PatchSample(rows, np.arange(6), np.arange(6))
    index = type("Index", (), {"query": lambda self, x, out: x.abs().mean(2)})
    variation = Variation(sample, index(), torch.device("cpu"))
    features = torch.tensor(draw(rng, 140, n_features)).view(2, 70, n_features)
    expected = variation.measure(features, left_out)
    found = variation.measure(features.cuda(), left_out)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=0)
    alone = variation.measure(features.cuda()[:1], left_out[:1])
    torch.testing.assert_close(found[:1], alone, rtol=1e-6, atol=0)
