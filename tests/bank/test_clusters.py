import math

import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import clusters, exact_cpu, exact_gpu
from skpatchsvdd._bank.clusters import Clusters
from skpatchsvdd._bank.exact_cpu import ClusterSearch
from skpatchsvdd._bank.exact_gpu import GpuSearch
from skpatchsvdd._bank.sketches import Sketches


def make_rows(rng, n, n_features=8, spread=1.0):
    """Rows around a few points, as features of patches are.

    The points are all as far from the middle, so that none is nearest to it.
    """
    points = rng.normal(size=(10, n_features))
    points *= spread * n_features**0.5 / np.linalg.norm(points, axis=1, keepdims=True)
    points = np.concatenate([points, -points])
    noise = 0.1 * spread * rng.normal(size=(n, n_features))
    return (points[rng.integers(20, size=n)] + noise).astype(np.float32)


@pytest.fixture(params=["cpu", "gpu"])
def make_search(request, monkeypatch):
    """Make a search as on a CPU, and as on a GPU without kernels."""
    monkeypatch.setattr(exact_gpu, "_TILE_ROWS", 16)
    device = torch.device("cpu")

    def make(rows, skipped=()):
        found = Clusters(rows.copy(), 0)
        clusters = (
            torch.from_numpy(found.rows),
            torch.from_numpy(found.centers),
            found.starts,
            np.isin(found.order, skipped).astype(np.int32),
        )
        is_cpu = request.param == "cpu"
        index = ClusterSearch(*clusters) if is_cpu else GpuSearch(*clusters, device)
        return lambda x: index.query(torch.from_numpy(x)[None], [1])[0].numpy()

    return make


@pytest.fixture
def search(make_search):
    return lambda rows, queries, skipped=(): make_search(rows, skipped)(queries)


@pytest.fixture
def n_products(monkeypatch):
    """How many products with rows there are in each call."""
    sizes = []

    def watch(multiply):
        def watched(*args, **kwargs):
            products = multiply(*args, **kwargs)
            sizes.append(math.prod(products.shape))
            return products

        return watched

    monkeypatch.setattr(Sketches, "multiply", watch(Sketches.multiply))
    for module in (exact_cpu, exact_gpu):
        monkeypatch.setattr(module, "expand", watch(module.expand))
    return sizes


@pytest.mark.parametrize("n_rows", [1, 2, 30, 1000])
@pytest.mark.parametrize("cluster_rows", [1, 50, 10**6])
def test_distances_equal_the_plain_way(rng, monkeypatch, n_rows, cluster_rows, search):
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", cluster_rows)
    rows = make_rows(rng, n_rows)
    # Near to the rows, and far from all of them.
    queries = np.concatenate([make_rows(rng, 100), rows[:50] + 0.01, rows[:5] * 9])
    expected = nearest_distances(queries, rows)
    np.testing.assert_allclose(search(rows, queries), expected, rtol=1e-4)


def test_a_row_finds_itself(rng, monkeypatch, search):
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 50)
    rows = make_rows(rng, 1000)
    assert (search(rows, rows) == 0).all()


def test_rows_are_left_out(rng, monkeypatch, search):
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 50)
    rows = make_rows(rng, 1000)
    # Among them all rows around some points: whole clusters have nothing to offer.
    skipped = np.flatnonzero(rows[:, 0] > np.median(rows[:, 0]))
    kept = np.delete(rows, skipped, axis=0)
    expected = nearest_distances(rows[:200], kept)
    distances = search(rows, rows[:200], skipped)
    np.testing.assert_allclose(distances, expected, rtol=1e-4, atol=1e-5)


def test_nothing_is_found_where_all_is_left_out(rng, search):
    rows = make_rows(rng, 100)
    assert np.isinf(search(rows, rows[:5], np.arange(100))).all()


def test_copies_do_not_matter(rng, monkeypatch, search):
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 50)
    rows = make_rows(rng, 10).repeat(300, axis=0)
    queries = make_rows(rng, 100)
    expected = nearest_distances(queries, rows[::300])
    np.testing.assert_allclose(search(rows, queries), expected, rtol=1e-4)


@pytest.mark.parametrize("make_search", ["cpu"], indirect=True)
def test_few_rows_are_looked_at(rng, monkeypatch, make_search, n_products):
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 200)
    rows = make_rows(rng, 20_000)
    search = make_search(rows)
    n_products.clear()
    search(rows[:500] + 0.01)
    assert sum(n_products) < 0.15 * 500 * 20_000


def test_products_are_bounded(rng, monkeypatch, make_search, n_products):
    # By 5 queries of 900 rows, or of those and 12 fillers.
    monkeypatch.setattr(exact_cpu, "_PRODUCTS", 5000)
    monkeypatch.setattr(exact_cpu, "_FEW_PRODUCTS", 5000)
    monkeypatch.setattr(exact_gpu, "_NUMBERS", 5000)
    search = make_search(make_rows(rng, 900))
    n_products.clear()
    search(make_rows(rng, 400))
    assert max(n_products) in (5 * 900, 5 * 912)
    assert 400 * 900 <= sum(n_products) < 2.1 * 400 * 900


def test_clusters_hold_every_row_once(rng, monkeypatch):
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 50)
    rows = make_rows(rng, 1000)
    found = Clusters(rows.copy(), 0)
    assert sorted(found.order) == list(range(1000))
    number = np.repeat(np.arange(20), np.diff(found.starts))
    np.testing.assert_array_equal(found.rows, rows[found.order])
    own = np.linalg.norm(found.rows - found.centers[number], axis=1)
    nearest = nearest_distances(found.rows, found.centers)
    np.testing.assert_allclose(own, nearest, rtol=1e-4)
    # Within a cluster in the order they came in.
    assert all((np.diff(found.order[number == i]) > 0).all() for i in range(20))
