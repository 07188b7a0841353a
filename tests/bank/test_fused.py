"""Kernels of a GPU: on one, or with Triton and TRITON_INTERPRET=1 step by step."""

import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import fused, regression
from skpatchsvdd._bank.clusters import Clusters
from skpatchsvdd._bank.exact_gpu import GpuSearch
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
    *tensors, starts, owners = make_clusters(rows)
    tensors = (x.to(kernel_device) for x in tensors)
    search = fused.FusedSearch(*tensors, starts, owners)
    found = search.query(torch.tensor(queries).to(kernel_device)[None], [-1])[0]
    expected = nearest_distances(queries, rows)
    np.testing.assert_allclose(found.cpu(), expected, rtol=1e-5)


def test_fused_search_that_errs_is_not_used(rng, kernel_device, monkeypatch):
    found = make_clusters(draw(rng, 1500))
    assert GpuSearch(*found, kernel_device).is_capturable
    query = fused.FusedSearch.query
    monkeypatch.setattr(fused.FusedSearch, "query", lambda *args: 1.01 * query(*args))
    with pytest.warns(UserWarning, match="slower one"):
        assert not GpuSearch(*found, kernel_device).is_capturable


@pytest.mark.parametrize("n_features", [8, 16, 32, 64, 66, 100, 128])
@pytest.mark.parametrize("owner", [-1, 1])
def test_fused_regression_equals_the_plain_one(
    rng, kernel_device, owner, n_features, monkeypatch
):
    rows = draw(rng, 600, n_features).reshape(6, 100, n_features)
    sample = PatchSample(rows, np.arange(6), np.arange(6))
    index = type("Index", (), {"query_exactly": lambda self, x, out: x.abs().mean(2)})
    usual = Variation(sample, index(), kernel_device)
    features = torch.tensor(draw(rng, 140, n_features)).view(2, 70, n_features)
    features = features.to(kernel_device)
    found = usual.usual(features, [owner, -1])
    assert usual._on_device.regress.uses_kernels
    monkeypatch.setattr(regression, "load_kernels", lambda *args: None)
    usual._on_device = None
    expected = usual.usual(features, [owner, -1])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
