"""Kernels of a GPU: on one, or with Triton and TRITON_INTERPRET=1 step by step."""

import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import fused, regression
from skpatchsvdd._bank.clusters import Clusters
from skpatchsvdd._bank.exact_gpu import GpuSearch
from skpatchsvdd._bank.variation import PatchSample, Variation


def make_search(rows, kernel_device, owners=None):
    owners = np.zeros(len(rows), dtype=int) if owners is None else owners
    clusters = Clusters(rows, 0)
    tensors = (
        torch.tensor(x).to(kernel_device) for x in (clusters.rows, clusters.centers)
    )
    return fused.FusedSearch(*tensors, clusters.starts, owners[clusters.order])


def search(rows, queries, kernel_device, owners=None, left_out=-1):
    queries = torch.tensor(queries).to(kernel_device)[None]
    found = make_search(rows, kernel_device, owners).query(queries, [left_out])
    return found[0].cpu().numpy()


def draw(rng, n, n_features=66, spread=0.3, center=0.0):
    return (center + spread * rng.standard_normal((n, n_features))).astype(np.float32)


@pytest.mark.parametrize("n_features", [3, 16, 64, 66, 100, 130])
def test_fused_distances_equal_the_plain_loop(rng, kernel_device, n_features):
    rows, queries = draw(rng, 2500, n_features), draw(rng, 70, n_features)
    expected = nearest_distances(queries, rows)
    np.testing.assert_allclose(
        search(rows, queries, kernel_device), expected, rtol=1e-5
    )


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_fused_distances_hold_at_any_scale(rng, kernel_device, scale):
    rows, queries = scale * draw(rng, 1500), scale * draw(rng, 70)
    expected = nearest_distances(queries, rows)
    np.testing.assert_allclose(
        search(rows, queries, kernel_device), expected, rtol=1e-5
    )


@pytest.mark.parametrize("factor", [10, 1e4])
def test_fused_distances_hold_far_from_all_rows(rng, kernel_device, factor):
    # The farther ones do not fit into half precision.
    rows, queries = draw(rng, 1500), factor * draw(rng, 70)
    expected = nearest_distances(queries, rows)
    np.testing.assert_allclose(
        search(rows, queries, kernel_device), expected, rtol=1e-5
    )


def test_fused_distances_hold_where_half_precision_tells_nothing(rng, kernel_device):
    # All rows of a cluster, and queries, are the same but for the last bits of it.
    ways = draw(rng, 3)
    rows = ways.repeat(900, axis=0) + draw(rng, 2700, spread=1e-5)
    queries = ways.repeat(25, axis=0) + draw(rng, 75, spread=1e-5)
    expected = nearest_distances(queries, rows)
    found = search(rows, queries, kernel_device)
    np.testing.assert_allclose(found, expected, rtol=2e-3)  # of float32 features


def test_fused_search_finds_copies(rng, kernel_device):
    rows = draw(rng, 40).repeat(50, axis=0)
    assert search(rows, rows[::31], kernel_device).max() == 0


def test_fused_search_leaves_out_the_rows_of_an_image(rng, kernel_device):
    rows, owners = draw(rng, 2500), np.arange(2500) // 500
    others = rows[owners != 3]
    found = search(rows, rows[1500:1570], kernel_device, owners, left_out=3)
    expected = nearest_distances(rows[1500:1570], others)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_fused_search_with_nothing_left_finds_nothing(rng, kernel_device):
    rows = draw(rng, 1500)
    owners = np.zeros(1500, dtype=int)
    assert np.isinf(search(rows, rows[:70], kernel_device, owners, left_out=0)).all()


def test_fused_search_that_errs_is_not_used(rng, kernel_device, monkeypatch):
    clusters = Clusters(draw(rng, 1500), 0)
    tensors = (torch.tensor(x) for x in (clusters.rows, clusters.centers))
    found = *tensors, clusters.starts, np.arange(1500) % 3
    assert GpuSearch(*found, kernel_device).is_capturable
    query = fused.FusedSearch.query
    monkeypatch.setattr(fused.FusedSearch, "query", lambda *args: 1.01 * query(*args))
    with pytest.warns(UserWarning, match="slower one"):
        assert not GpuSearch(*found, kernel_device).is_capturable


@pytest.mark.parametrize("n_features", [8, 16, 32, 64, 66, 100, 128])
@pytest.mark.parametrize("owner", [-1, 1])
def test_regression_equals_the_plain_one(
    rng, kernel_device, owner, n_features, monkeypatch
):
    rows = draw(rng, 600, n_features).reshape(6, 100, n_features)
    sample = PatchSample(rows, np.arange(6))
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
