"""Exact search holds its promise on clouds made to break it."""

import math
import pickle

import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import clusters, exact, exact_gpu
from skpatchsvdd._bank.clusters import ClusterBounds, Nearest, Sketches, product_error
from skpatchsvdd._bank.exact import Bank, ClusterSearch, ExactIndex, find_needed
from skpatchsvdd._bank.exact_gpu import WholeSearch
from skpatchsvdd._bank.fused import FusedSearch

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
    """Search as on a CPU, by short rows, long ones and both, and as on a GPU.

    An owner is left out of the search for each image, or -1.
    """
    largest = {"short": 1.0, "long": -1.0}.get(request.param, exact._MANY)
    monkeypatch.setattr(exact, "_MANY", largest)
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 50)
    monkeypatch.setattr(exact_gpu, "_TILE_ROWS", 16)
    device = torch.device("cpu")
    if request.param == "fused":
        device = request.getfixturevalue("kernel_device")

    def make_search(_, rows, centers, starts, owners):
        if request.param == "whole":
            return WholeSearch(rows, owners)
        if request.param == "fused":
            if len(rows) <= exact_gpu._FEW_ROWS:
                pytest.skip("the kernels are for more rows; others search then")
            return FusedSearch(rows.to(device), centers.to(device), starts, owners)
        return ClusterSearch(rows, centers, starts, owners)

    monkeypatch.setattr(exact, "_make_search", make_search)

    def query(rows, owners, queries, left_out):
        if request.param == "fused" and rows.shape[1] > exact_gpu._MOST_FEATURES:
            pytest.skip("the kernels are for fewer features; others search then")
        index = ExactIndex(Bank(rows.copy(), owners))
        queries = queries.reshape(len(left_out), -1, rows.shape[1])
        found = index.query(torch.from_numpy(queries).to(device), left_out)
        return found.flatten().cpu().numpy()

    return query


@pytest.mark.parametrize("place", [-1, 1])
@pytest.mark.parametrize("name", CLOUDS)
def test_distances_are_those_of_the_nearest_rows(rng, search, name, place):
    rows = CLOUDS[name](rng, N_ROWS).astype(np.float32)
    owners = np.arange(N_ROWS, dtype=np.int32) // (N_ROWS // 3 + 1)
    queries = make_queries(rng, rows, CLOUDS[name])
    expected = nearest_distances(queries, rows[owners != place])
    distances = search(rows, owners, queries, [place])
    np.testing.assert_allclose(distances, expected, rtol=1.2e-5)


@pytest.mark.parametrize("n_rows", [1, 2, 33, 6000])
@pytest.mark.parametrize("n_features", [3, 64, 300])
@pytest.mark.parametrize("cluster_rows", [1, 10**6])
def test_any_number_of_rows(rng, monkeypatch, search, n_rows, n_features, cluster_rows):
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", max(cluster_rows, n_rows // 99))
    rows, queries = (
        np.float32(cloud(rng, n, n_features=n_features)) for n in (n_rows, 20)
    )
    distances = search(rows, np.zeros(n_rows, dtype=np.int32), queries, [-1])
    np.testing.assert_allclose(distances, nearest_distances(queries, rows), rtol=1.2e-5)


def test_rows_of_an_owner_are_left_out(rng, search):
    """Whole clusters are his, one owner has no rows, and another one is not known."""
    rows = np.float32(cloud(rng, 700))
    owners = np.digitize(rows[:, 0], [-1, 0, 0, 1]).astype(np.int32)
    left_out = [0, 4, -1, 2, 1, 9]
    distances = search(rows, owners, rows[:6], left_out)
    expected = [
        nearest_distances(row[None], rows[owners != owner])[0]
        for row, owner in zip(rows, left_out, strict=False)
    ]
    np.testing.assert_allclose(distances, expected, rtol=1.2e-5)


@pytest.fixture
def bank(rng):
    """Ten images of 30 patches: 20 of all, five of two images, the others their own."""
    shared, of_two = rng.standard_normal((20, 8)), rng.standard_normal((5, 8))
    rows = rng.standard_normal((10, 30, 8))
    rows[:, :20] = shared
    rows[3:5, 20:25] = of_two
    owners = np.arange(10, dtype=np.int32).repeat(30)
    return Bank(rows.reshape(300, 8).astype(np.float32), owners)


def test_distances_are_those_to_all_copies(bank, rng, search):
    queries = (bank.rows + 0.01 * rng.standard_normal((300, 8))).astype(np.float32)
    found = search(bank.rows, bank.owners, queries, list(range(10)))
    for owner in range(10):
        is_own = bank.owners == owner
        expected = nearest_distances(queries[is_own], bank.rows[~is_own])
        np.testing.assert_allclose(found[is_own], expected, rtol=1e-4)


def test_two_owners_of_a_row_are_needed_and_no_more(bank):
    needed = find_needed(bank.rows, bank.owners).reshape(10, 30)
    assert needed[:2].all()
    assert not needed[2:, :20].any()
    assert needed[2:, 20:].all()
    once = find_needed(bank.rows, np.zeros(300)).reshape(10, 30)
    assert once.sum() == 20 + 5 + 8 * 10 + 2 * 5
    assert find_needed(bank.rows[:30], bank.owners[:30]) is None


def test_rows_that_have_the_same_hash_by_chance_stay(bank, monkeypatch):
    monkeypatch.setattr(exact, "_hash_rows", lambda x: np.zeros(len(x), np.uint64))
    needed = find_needed(bank.rows, bank.owners)
    kept = np.unique(bank.rows[needed], axis=0)
    np.testing.assert_array_equal(kept, np.unique(bank.rows, axis=0))


def test_copies_are_in_the_bank_and_not_in_the_search(bank, monkeypatch):
    seen = []

    def make_search(device, rows, centers, starts, owners):
        seen.append(len(rows))
        assert starts[-1] == len(rows) == len(owners)
        assert len(centers) == 1
        return ClusterSearch(rows, centers, starts, owners)

    monkeypatch.setattr(exact, "_make_search", make_search)
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 130)  # of 300
    index = ExactIndex(bank._replace(rows=bank.rows.copy()))
    index.query(torch.from_numpy(bank.rows[:30])[None])
    assert seen == [2 * 30 + 8 * 10]
    assert len(index) == 300


@pytest.mark.parametrize("is_sorted", [False, True])
def test_the_bank_comes_back(rng, is_sorted):
    rows = np.float32(cloud(rng, 3000, center=0.5))
    owners = np.arange(3000, dtype=np.int32) // 100
    index = ExactIndex(Bank(rows.copy(), owners))
    if is_sorted:  # by the first search
        index.query(torch.from_numpy(rows[None, :10]))
    bank = index.bank()
    np.testing.assert_array_equal(bank.owners, owners)
    for owner in range(30):
        come, gone = (x[owners == owner] for x in (bank.rows, rows))
        come, gone = (x[np.lexsort(x.T)] for x in (come, gone))
        np.testing.assert_array_equal(come, gone)


def test_index_pickles_without_tensors(rng):
    index = ExactIndex(Bank(np.float32(cloud(rng, 100)), np.zeros(100, dtype=int)))
    queries = torch.from_numpy(np.float32(cloud(rng, 10)))[None]
    before = index.query(queries)
    assert b"torch" not in pickle.dumps(index)
    assert torch.equal(pickle.loads(pickle.dumps(index)).query(queries), before)


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
    for module in (exact, exact_gpu):
        monkeypatch.setattr(module, "expand", watch(module.expand))
    return sizes


@pytest.mark.parametrize("search", ["cluster"], indirect=True)
def test_few_rows_are_looked_at(rng, monkeypatch, search, n_products):
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 200)
    points = rng.choice([-1, 1], (20, 8))
    rows = np.float32(cloud(rng, 20_000, 0.1, points.repeat(1000, axis=0), 8))
    search(rows, np.zeros(20_000, dtype=int), rows[::40] + np.float32(0.01), [-1])
    assert sum(n_products) < 0.15 * 500 * 20_000


@pytest.mark.parametrize("search", ["cluster", "whole"], indirect=True)
def test_products_are_bounded(rng, monkeypatch, search, n_products):
    # By 5 queries of 900 rows, or of those and 12 fillers.
    monkeypatch.setattr(exact, "_PRODUCTS", 5000)
    monkeypatch.setattr(exact_gpu, "_NUMBERS", 5000)
    monkeypatch.setattr(clusters, "_CLUSTER_ROWS", 900)
    rows, queries = (np.float32(cloud(rng, n)) for n in (900, 400))
    search(rows, np.zeros(900, dtype=int), queries, [-1])
    assert max(n_products) in (5 * 900, 5 * 912)
    # Sketches for a guess and for the rest, where they tell nothing, and then all rows.
    assert 400 * 900 <= sum(n_products) < 3.1 * 400 * 900


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


@pytest.mark.parametrize("answer", [np.nan, 0.0, 2.0])
def test_axes_are_orthogonal_whatever_a_library_answers(rng, monkeypatch, answer):
    right = torch.linalg.qr

    def wrong(x):
        found = right(x)
        return type(found)((found.Q * answer, found.R))

    monkeypatch.setattr(torch.linalg, "qr", wrong)
    rows = torch.from_numpy(np.float32(cloud(rng, 50)))
    axes = clusters._find_axes(rows, 12)
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
    monkeypatch.setattr("skpatchsvdd._bank.clusters._CPU_NUMBERS", 10 * D)
    found = Nearest(torch.ones(2, D), torch.ones(1000, D))
    sizes, original = [], torch.linalg.vecdot

    def watch(x, *args):
        sizes.append(len(x))
        return original(x, *args)

    monkeypatch.setattr(torch.linalg, "vecdot", watch)
    found.offer(torch.zeros(1000, dtype=torch.long), torch.arange(1000))
    assert sizes == [10]
    assert found.distances().tolist() == [0, torch.inf]
