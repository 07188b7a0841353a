"""Kernels and their fallback, with plain torch in place of kernels."""

import warnings
import weakref

import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import exact, exact_gpu
from skpatchsvdd._bank.exact import Bank, ExactIndex
from skpatchsvdd._bank.exact_gpu import WholeSearch, make_gpu_search

CPU = torch.device("cpu")


def fail(*args, **kwargs):
    raise RuntimeError("Failed to find C compiler")


def run_out(*args, **kwargs):
    raise torch.cuda.OutOfMemoryError


class FakeSearch:
    """Stands in for the search by kernels, on a CPU."""

    is_capturable = True

    def __init__(self, rows, centers, starts, owners):
        self._search = WholeSearch(rows, owners)

    def query(self, features, left_out):
        return self._search.query(features, left_out)


class DeafSearch(FakeSearch):
    def query(self, features, left_out):
        return self._search.query(features, [-1] * len(left_out))


@pytest.fixture
def index(monkeypatch, rng):
    """An index that searches as on a GPU."""
    monkeypatch.setattr(exact_gpu, "_suits_kernels", lambda rows: True)
    monkeypatch.setattr(exact, "_make_search", lambda cpu, *x: make_gpu_search(*x, cpu))
    rows = rng.normal(size=(300, 8)).astype(np.float32)
    return ExactIndex(Bank(rows, np.arange(300, dtype=np.int32) % 3))


@pytest.mark.parametrize(
    ("kernels", "warns"),
    [
        (FakeSearch, None),
        (fail, "fails (RuntimeError: Failed to find C compiler)"),
        (DeafSearch, "does not find what the plain one finds"),
    ],
)
def test_a_search_finds_the_same_with_and_without_kernels(
    index, monkeypatch, rng, kernels, warns
):
    monkeypatch.setattr(exact_gpu, "FusedSearch", kernels)
    queries = rng.normal(size=(2, 20, 8)).astype(np.float32)
    with warnings.catch_warnings(record=True) as told:
        found = index.query(torch.from_numpy(queries), [0, -1])
    assert [warns in str(x.message) for x in told] == ([True] if warns else [])
    rows, owners, _ = index.bank()
    for x, kept, distances in zip(
        queries, (owners != 0, owners >= 0), found, strict=True
    ):
        expected = nearest_distances(x, rows[kept])
        np.testing.assert_allclose(distances, expected, rtol=1e-4)
    assert index.search_on(CPU).is_capturable == (kernels is FakeSearch)


def test_memory_that_runs_out_is_no_fault_of_kernels(index, monkeypatch):
    monkeypatch.setattr(exact_gpu, "FusedSearch", run_out)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        index.query(torch.zeros(1, 2, 8))


def test_a_search_that_a_graph_may_read_stays_while_another_device_searches(
    index, monkeypatch
):
    monkeypatch.setattr(exact_gpu, "FusedSearch", FakeSearch)
    other = torch.device("cpu", 0)  # another key
    held, dropped = index.search_on(CPU), weakref.ref(index.search_on(other))
    index.search_on(torch.device("cpu", 1))
    assert index.search_on(CPU) is held
    assert dropped() is None
