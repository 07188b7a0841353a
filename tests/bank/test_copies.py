import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import exact
from skpatchsvdd._bank.exact import Bank, ExactIndex, find_needed
from skpatchsvdd._bank.exact_cpu import ClusterSearch
from skpatchsvdd._bank.exact_gpu import GpuSearch


@pytest.fixture
def bank(rng):
    """Ten images of 30 patches: 20 of all, five of two images, the others their own."""
    shared, of_two = rng.standard_normal((20, 8)), rng.standard_normal((5, 8))
    rows = rng.standard_normal((10, 30, 8))
    rows[:, :20] = shared
    rows[3:5, 20:25] = of_two
    owners = np.arange(10, dtype=np.int32).repeat(30)
    places = np.column_stack([owners, np.tile(np.arange(30, dtype=np.int32), 10)])
    return Bank(rows.reshape(300, 8).astype(np.float32), owners, places)


def test_two_owners_of_a_row_are_needed_and_no_more(bank):
    needed = find_needed(bank.rows, bank.owners).reshape(10, 30)
    assert needed[:2].all()
    assert not needed[2:, :20].any()
    assert needed[2:, 20:].all()


def test_copies_of_one_owner_are_needed_once(rng):
    rows = np.repeat(rng.standard_normal((4, 8)).astype(np.float32), 3, axis=0)
    needed = find_needed(rows, np.zeros(12, dtype=np.int32))
    np.testing.assert_array_equal(needed.nonzero()[0], [0, 3, 6, 9])


def test_rows_without_copies_are_all_needed(rng):
    rows = rng.standard_normal((50, 8)).astype(np.float32)
    assert find_needed(rows, np.arange(50)) is None


def test_rows_that_have_the_same_hash_by_chance_stay(bank, monkeypatch):
    monkeypatch.setattr(exact, "_hash_rows", lambda x: np.zeros(len(x), np.uint64))
    needed = find_needed(bank.rows, bank.owners)
    kept = np.unique(bank.rows[needed], axis=0)
    np.testing.assert_array_equal(kept, np.unique(bank.rows, axis=0))


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("n_clusters", [1, 12])
def test_distances_are_those_to_all_rows(bank, rng, kind, n_clusters, monkeypatch):
    if kind == "gpu":
        monkeypatch.setattr(exact, "_make_search", lambda cpu, *x: GpuSearch(*x, cpu))
    monkeypatch.setattr("skpatchsvdd._bank.clusters._CLUSTER_ROWS", 300 // n_clusters)
    noise = 0.01 * rng.standard_normal((300, 8))
    queries = (bank.rows + noise).astype(np.float32).reshape(10, 30, 8)
    index = ExactIndex(bank._replace(rows=bank.rows.copy()))
    found = index.query(torch.from_numpy(queries), list(range(10)))
    for owner, (patches, distances) in enumerate(zip(queries, found, strict=True)):
        expected = nearest_distances(patches, bank.rows[bank.owners != owner])
        np.testing.assert_allclose(distances, expected, rtol=1e-4)


def test_a_search_holds_copies_of_two_owners_and_the_bank_all(bank, monkeypatch):
    seen = []

    def make_search(device, rows, centers, starts, owners):
        seen.append(len(rows))
        assert starts[-1] == len(rows) == len(owners)
        return ClusterSearch(rows, centers, starts, owners)

    monkeypatch.setattr(exact, "_make_search", make_search)
    index = ExactIndex(bank._replace(rows=bank.rows.copy()))
    index.query(torch.from_numpy(bank.rows[:30])[None])
    assert seen == [2 * 30 + 8 * 10]
    assert len(index) == 300
    np.testing.assert_array_equal(index.bank().rows, bank.rows)


def test_copies_do_not_make_for_more_clusters(rng):
    rows = np.tile(rng.standard_normal((81, 8)).astype(np.float32), (60, 1))
    index = ExactIndex(Bank(rows, np.arange(60, dtype=np.int32).repeat(81)))
    index.query(torch.from_numpy(rows[:81].copy())[None])
    assert len(index.centers) == 1
