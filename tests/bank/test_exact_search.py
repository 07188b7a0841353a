"""Exact search holds its promise on clouds made to break it."""

import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import clusters, exact, exact_gpu, fused, sketches
from skpatchsvdd._bank.clusters import ClusterBounds
from skpatchsvdd._bank.distances import Nearest, product_error
from skpatchsvdd._bank.exact import Bank, ExactIndex
from skpatchsvdd._bank.exact_cpu import ClusterSearch
from skpatchsvdd._bank.exact_gpu import GpuSearch
from skpatchsvdd._bank.fused import FusedSearch
from skpatchsvdd._bank.sketches import Sketches

N_ROWS, N_QUERIES, D = 1200, 60, 16


def cloud(rng, n, spread=1.0, center=0.0, n_features=D):
    return center + spread * rng.standard_normal((n, n_features))


def two_clouds(rng, n):
    side = np.zeros((n, D))
    side[:, 0] = rng.choice([-10, 10], n)
    return cloud(rng, n, 1e-3, side)


def unequal_clouds(rng, n):
    """Clouds of spreads from 1e-6 to 10, around nearby points."""
    spreads = 10.0 ** rng.integers(-6, 2, (n, 1))
    return cloud(rng, n, spreads, np.log10(spreads))


def nested_clouds(rng, n):
    """Spreads that shrink towards one point far from the origin."""
    return cloud(rng, n, 10.0 ** rng.uniform(-5, 1, (n, 1)), 3.0)


def on_a_line(rng, n):
    return 50 + np.linspace(-1, 1, n)[:, None] * np.arange(1, D + 1)


def many_features(rng, n):
    return cloud(rng, n, 1e-3, rng.choice([-1, 1], (n, 1)), n_features=150)


def copies(rng, n):
    """Twenty points, of many copies each."""
    return cloud(np.random.default_rng(7), 20, center=5)[rng.integers(20, size=n)]


CLOUDS = {
    "two tight clouds": two_clouds,
    "far from the origin": lambda rng, n: cloud(rng, n, 1e-2, 1000),
    "tight": lambda rng, n: cloud(rng, n, 1e-6, 0.9),
    "small": lambda rng, n: 1e-6 * two_clouds(rng, n),
    "large": lambda rng, n: 1e6 * two_clouds(rng, n),
    "of unequal spread": unequal_clouds,
    "nested": nested_clouds,
    "on a line": on_a_line,
    "of many features": many_features,
    "of copies": copies,
    "all the same": lambda rng, n: np.full((n, D), 0.3),
}


def make_queries(rng, rows, make):
    """Patches like the rows, equal to some, beside some, between some, far away."""
    rows = np.float64(rows)
    some, others = rows[rng.integers(len(rows), size=(2, 30))]
    beside = some * (1 + 3e-7 * rng.standard_normal(some.shape))
    queries = [make(rng, N_QUERIES), some, beside, (some + others) / 2, 1e4 * some]
    return np.concatenate(queries).astype(np.float32)


WAYS = ["cluster", "short", "long", "whole", "fused"]


@pytest.fixture(params=WAYS)
def search(request, monkeypatch):
    """Search as on a CPU, by short rows, long ones and both, and as on a GPU."""
    largest = {"short": 1.0, "long": -1.0}.get(request.param, sketches._MANY)
    monkeypatch.setattr(sketches, "_MANY", largest)
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 50)
    monkeypatch.setattr(exact_gpu, "_TILE_ROWS", 16)
    device = torch.device("cpu")
    if request.param == "fused":
        device = request.getfixturevalue("kernel_device")

    def make_search(_, rows, centers, starts, owners):
        if request.param == "whole":
            return GpuSearch(rows, centers, starts, owners, device)
        if request.param == "fused":
            return FusedSearch(rows.to(device), centers.to(device), starts, owners)
        return ClusterSearch(rows, centers, starts, owners)

    monkeypatch.setattr(exact, "_make_search", make_search)

    def query(rows, owners, queries, place):
        if request.param == "fused" and rows.shape[1] > fused._MOST_FEATURES:
            pytest.skip("the kernels are for fewer features; others search then")
        index = ExactIndex(Bank(rows.copy(), owners))
        features = torch.from_numpy(queries).to(device)[None]
        return index.query(features, [place])[0].cpu().numpy()

    return query


@pytest.mark.parametrize("place", [-1, 1])
@pytest.mark.parametrize("name", CLOUDS)
def test_distances_are_those_of_the_nearest_rows(rng, search, name, place):
    rows = CLOUDS[name](rng, N_ROWS).astype(np.float32)
    owners = np.arange(N_ROWS, dtype=np.int32) // (N_ROWS // 3 + 1)
    queries = make_queries(rng, rows, CLOUDS[name])
    expected = nearest_distances(queries, rows[owners != place])
    distances = search(rows, owners, queries, place)
    np.testing.assert_allclose(distances, expected, rtol=1.2e-5)


@pytest.mark.parametrize("name", CLOUDS)
def test_bounds_hold_whichever_rows_a_cluster_has(rng, name):
    rows = np.float32(CLOUDS[name](rng, 400))
    queries = make_queries(rng, rows, CLOUDS[name])
    starts = np.array([0, 100, 100, 330, 400])  # one is empty
    centers = np.stack([rows[0], rows[1], rows[0], rows[150:].mean(axis=0)])
    arrays = (torch.from_numpy(x) for x in (rows, centers))
    _, bounds = ClusterBounds(*arrays, starts)(torch.from_numpy(queries))
    for cluster in (0, 2, 3):
        part = rows[starts[cluster] : starts[cluster + 1]]
        half_squares = nearest_distances(queries, part) ** 2 / 2
        assert (bounds[:, cluster].numpy() <= half_squares).all()
    assert torch.isinf(bounds[:, 1]).all()


@pytest.mark.parametrize("answer", [np.nan, 0.0, 2.0])
def test_axes_are_orthogonal_whatever_a_library_answers(rng, monkeypatch, answer):
    right = torch.linalg.qr

    def wrong(x):
        found = right(x)
        return type(found)((found.Q * answer, found.R))

    monkeypatch.setattr(torch.linalg, "qr", wrong)
    rows = torch.from_numpy(np.float32(cloud(rng, 50)))
    axes = sketches._find_axes(rows, 12)
    torch.testing.assert_close(axes.T @ axes, torch.eye(12, dtype=torch.float64))


@pytest.mark.parametrize("name", CLOUDS)
def test_sketches_of_rows_are_never_farther_than_the_rows(rng, name):
    rows = np.float32(CLOUDS[name](rng, 400))
    queries = make_queries(rng, rows, CLOUDS[name])
    starts = np.array([0, 3, 400])  # one has fewer rows than there are axes
    centers = np.stack([rows[:3].mean(axis=0), rows[3:].mean(axis=0)])
    made = Sketches(torch.from_numpy(rows), torch.from_numpy(centers), starts)
    for i, center in enumerate(centers):
        runs = [(i, 0, len(queries))]
        clusters = torch.full((len(queries),), i)
        short, own = made.shorten(torch.from_numpy(queries), clusters, runs)
        found = made.multiply(short, i) + own.numpy()[:, None]
        y = np.float64(rows[starts[i] : starts[i + 1]])
        exact = ((np.float64(queries)[:, None] - y) ** 2).sum(axis=2) / 2
        size = 2 * own.numpy()[:, None] + ((y - center) ** 2).sum(axis=1)
        assert (found <= exact + made.error * size).all()


def test_sketches_tell_where_they_are_vague(rng):
    noise = cloud(rng, 500, n_features=64)
    plane = noise * (np.arange(64) < 4)
    rows = torch.from_numpy(np.float32(np.concatenate([noise, plane])))
    made = Sketches(rows, torch.zeros(2, 64), np.array([0, 500, 1000]))
    assert made.is_vague.tolist() == [True, False]


@pytest.mark.parametrize("seed", range(3))
def test_rounding_stays_below_its_bound(seed):
    rng = np.random.default_rng(seed)
    for n_features in (1, 16, 66, 300):
        x = cloud(rng, 2000, n_features=n_features).astype(np.float32)
        y = (x * (1 + 1e-3 * rng.standard_normal(x.shape))).astype(np.float32)
        a, b = torch.from_numpy(x), torch.from_numpy(y)
        own, half = (v.square().sum(dim=1) / 2 for v in (a, b))
        found = torch.addmm(half, a[:50], b.T, alpha=-1) + own[:50, None]
        x, y = np.float64(x[:50]), np.float64(y)
        exact = ((x[:, None] - y) ** 2).sum(axis=2) / 2
        size = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)
        errors = np.abs(found.numpy() - exact) / size
        assert 0 < errors.max() < product_error(n_features)


def test_copies_of_a_row_at_no_distance_are_looked_at_once(monkeypatch):
    monkeypatch.setattr("skpatchsvdd._bank.distances._CPU_NUMBERS", 10 * D)
    found = Nearest(torch.ones(2, D), torch.ones(1000, D))
    sizes, original = [], torch.linalg.vecdot

    def watch(x, *args):
        sizes.append(len(x))
        return original(x, *args)

    monkeypatch.setattr(torch.linalg, "vecdot", watch)
    found.offer(torch.zeros(1000, dtype=torch.long), torch.arange(1000))
    assert sizes == [10]
    assert found.distances().tolist() == [0, torch.inf]
