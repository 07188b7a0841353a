import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference import nearest_distances
from scipy.spatial.distance import cdist

from skpatchsvdd._bank import collect
from skpatchsvdd._bank.approximate import ApproximateIndex
from skpatchsvdd._bank.collect import make_index
from skpatchsvdd._bank.exact import Bank


def features(rng, n, n_features=16):
    return (0.1 * rng.standard_normal((n, n_features))).astype(np.float32)


def as_bank(rows, owners=None):
    owners = np.zeros(len(rows), dtype=np.int32) if owners is None else owners
    return Bank(rows.copy(), owners)


def query(index, queries):
    """Search the patches of one image."""
    return index.query(torch.from_numpy(queries)[None])[0].numpy()


@pytest.mark.parametrize(
    ("method", "device", "expected"),
    [
        ("auto", "cpu", "exact"),
        ("exact", "cpu", "exact"),
        ("pynndescent", "cpu", "approximate"),
        ("pynndescent", "cuda", "exact"),
    ],
)
def test_pynndescent_is_asked_where_it_is_wanted(monkeypatch, method, device, expected):
    monkeypatch.setattr(collect, "ExactIndex", lambda *args: "exact")
    monkeypatch.setattr(collect, "ApproximateIndex", lambda *args: "approximate")
    bank = as_bank(np.empty((9, 1), dtype=np.float32))
    assert make_index(bank, method, torch.device(device), None, 0) == expected


def test_compilation_is_announced_once(monkeypatch):
    monkeypatch.setattr(collect, "ApproximateIndex", lambda *args: None)
    said = []
    bank, cpu = as_bank(np.zeros((5, 2), dtype=np.float32)), torch.device("cpu")
    monkeypatch.delitem(sys.modules, "pynndescent", raising=False)
    make_index(bank, "pynndescent", cpu, None, 0, said.append)
    monkeypatch.setitem(sys.modules, "pynndescent", None)
    make_index(bank, "pynndescent", cpu, None, 0, said.append)
    make_index(bank, "exact", cpu, None, 0, said.append)
    assert said == ["compiling pynndescent, about a minute once in a process"]


class PlainDescent:
    """What is used of pynndescent, which takes a minute to compile, the plain way."""

    def __init__(self, rows, metric, n_neighbors, random_state, n_jobs):
        self.rows = rows

    def prepare(self):
        pass

    def query(self, queries, k, epsilon):
        distances = cdist(queries, self.rows)
        nearest = np.argsort(distances, axis=1)[:, :k]
        return nearest, np.take_along_axis(distances, nearest, axis=1)


@pytest.fixture(
    scope="module", params=["plain", pytest.param("compiled", marks=pytest.mark.slow)]
)
def approximate(request):
    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "plain":
            plain = SimpleNamespace(NNDescent=PlainDescent)
            monkeypatch.setitem(sys.modules, "pynndescent", plain)
        yield make_approximate()


def make_approximate():
    rng = np.random.default_rng(12345)
    rows = features(rng, 3000)
    owners = np.zeros(3000, dtype=np.int32)
    owners[1:] = 1
    owners[2998:] = 2
    # More threads than there are.
    return rows, ApproximateIndex(as_bank(rows, owners), n_jobs=64, seed=0)


def test_approximate_search_only_proposes(rng, approximate, monkeypatch):
    bank, index = approximate
    queries = features(rng, 200)
    expected = nearest_distances(queries, bank)
    np.testing.assert_allclose(query(index, queries), expected, rtol=2e-5)
    propose = index._propose
    for factor in (1.5, np.inf):
        monkeypatch.setattr(index, "_propose", lambda *x, k=factor: k * propose(*x))
        np.testing.assert_allclose(query(index, queries), expected, rtol=2e-5)


def test_approximate_distance_does_not_depend_on_other_images(rng, approximate):
    _, index = approximate
    images = torch.from_numpy(features(rng, 400)).reshape(8, 50, 16)
    alone = torch.cat([index.query(image[None]) for image in images])
    assert torch.equal(index.query(images), alone)


def test_approximate_search_leaves_out_the_rows_of_an_image(approximate):
    rows, index = approximate
    images = torch.from_numpy(rows[[0, 5, 2]][:, None])  # three images of one patch
    # The third one leaves out all rows but three: no neighbour may be left.
    distances = index.query(images, [0, -1, 1])
    expected = nearest_distances(rows[:1], rows[1:])[0]
    assert distances[0].item() == pytest.approx(expected, rel=1e-5)
    assert distances[1] == 0
    expected = nearest_distances(rows[2:3], rows[[0, 2998, 2999]])[0]
    assert distances[2].item() == pytest.approx(expected, rel=1e-5)


def test_approximate_index_survives_pickling(rng, approximate):
    _, index = approximate
    queries = features(rng, 50)
    before = query(index, queries)
    copy = pickle.loads(pickle.dumps(index))
    assert isinstance(copy._index, bytes)  # unpacked, and compiled, on first use
    repacked = pickle.loads(pickle.dumps(copy))
    np.testing.assert_array_equal(query(copy, queries), before)
    np.testing.assert_array_equal(query(repacked, queries), before)


def test_threads_share_an_approximate_index(rng, approximate):
    _, index = approximate
    queries = torch.from_numpy(features(rng, 60)).view(6, 1, 10, 16)
    expected = torch.stack([index.query(image) for image in queries])
    shared = pickle.loads(pickle.dumps(index))  # unpacked by one of the threads
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            found = torch.stack(list(pool.map(shared.query, queries)))
            assert torch.equal(found, expected)


@pytest.mark.slow
def test_approximate_search_finds_a_copy_of_another_image(rng):
    rows = np.tile(features(rng, 20, n_features=8), (30, 1))
    index = ApproximateIndex(as_bank(rows, np.arange(30).repeat(20)), 1, 0)
    queries = torch.from_numpy(rows.reshape(30, 20, 8))
    assert (index.query(queries, list(range(30))) == 0).all()
    assert len(index) == 600
    assert len(index._owners) == 40  # two of each are what is searched


@pytest.mark.slow
def test_an_approximate_index_that_fails_leaves_numba_s_threads(rng, monkeypatch):
    import numba
    import pynndescent

    def fail(*args, **kwargs):
        numba.set_num_threads(1)
        raise MemoryError

    monkeypatch.setattr(pynndescent, "NNDescent", fail)
    before = numba.get_num_threads()
    with pytest.raises(MemoryError):
        ApproximateIndex(as_bank(features(rng, 50)), n_jobs=1, seed=0)
    assert numba.get_num_threads() == before
