"""Kernels and their fallback, with functions of torch in place of kernels."""

import types
import warnings

import numpy as np
import pytest
import torch
from reference import nearest_distances

from skpatchsvdd._bank import exact, exact_gpu, regression
from skpatchsvdd._bank.exact import Bank, ExactIndex
from skpatchsvdd._bank.exact_gpu import GpuSearch, WholeSearch
from skpatchsvdd._bank.variation import PatchSample, Variation
from skpatchsvdd._gpu import KernelWithFallback, kernels

CPU = torch.device("cpu")


class Kernel:
    """Stands in for a kernel: a function of what that is given."""

    def __init__(self, function):
        self._function = function

    def __getitem__(self, grid):
        return self._function


def fail(*args, **kwargs):
    raise RuntimeError("out of resource: shared memory")


def plain(x):
    return -x


def make(fast, make_plain=lambda: plain):
    """Make a call of kernels, or of what raises an error instead of making them."""
    made = fast if fast is raise_early else (lambda: fast)
    return KernelWithFallback("search", made, make_plain, lambda x, y: x(1) == y(1))


def raise_early():
    fail()


@pytest.mark.parametrize("fast", [None, lambda x: 0 - x])
def test_what_is_right_is_used_and_nothing_is_told(fast):
    n_made = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = make(fast, lambda: n_made.append(1) or plain)
        assert found(3) == found(x=3) == -3
    assert found.uses_kernels == (fast is not None)
    assert len(n_made) == 1  # to compare with, and not kept, or to be used


@pytest.mark.parametrize(
    ("fast", "reason"),
    [
        (raise_early, r"fails \(RuntimeError: out of resource"),
        (fail, r"fails \(RuntimeError: out of resource"),
        (abs, "does not find what the plain one"),
    ],
)
def test_what_fails_or_errs_is_told_and_not_used(fast, reason):
    with pytest.warns(UserWarning, match=f"the fast search on this GPU {reason}"):
        found = make(fast)
    assert not found.uses_kernels
    assert found(3) == -3


def test_what_fails_later_is_told_once_and_not_used_again():
    calls = []

    def fast(x):
        calls.append(x)
        return -x if x < 5 else fail()

    found = make(fast)
    assert found(3) == -3
    with pytest.warns(UserWarning, match="out of resource") as told:
        assert [found(x) for x in (7, 8, 3)] == [-7, -8, -3]
    assert len(told) == 1
    assert calls == [1, 3, 7]
    assert not found.uses_kernels


def test_a_recording_that_fails_is_no_fault_of_kernels(monkeypatch):
    found = make(lambda x: -x if x < 5 else fail())
    monkeypatch.setattr(kernels, "_is_recording", lambda: True)
    with pytest.raises(RuntimeError, match="out of resource"):
        found(7)
    assert found.uses_kernels


def test_memory_that_runs_out_is_no_fault_of_kernels():
    def run_out(x):
        if x == limit:
            raise torch.cuda.OutOfMemoryError
        return -x

    limit = 1
    with pytest.raises(torch.cuda.OutOfMemoryError):
        make(run_out)
    limit = 3
    found = make(run_out)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        found(3)
    assert found.uses_kernels


class FakeSearch:
    """Stands in for the search by kernels, on a CPU."""

    def __init__(self, rows, centers, starts, owners):
        self._search = WholeSearch(rows, owners)

    def query(self, features, left_out):
        return self._search.query(features, left_out)


class DeafSearch(FakeSearch):
    def query(self, features, left_out):
        return self._search.query(features, [-1] * len(left_out))


class LateSearch(FakeSearch):
    def query(self, features, left_out):
        return fail() if len(features) > 1 else super().query(features, left_out)


@pytest.fixture
def index(monkeypatch, rng):
    """An index that searches as on a GPU."""
    monkeypatch.setattr(exact_gpu, "load_kernels", lambda *args: "kernels")
    monkeypatch.setattr(exact, "_make_search", lambda cpu, *x: GpuSearch(*x, cpu))
    rows = rng.normal(size=(300, 8)).astype(np.float32)
    return ExactIndex(Bank(rows, np.arange(300, dtype=np.int32) % 3))


@pytest.mark.parametrize(
    ("kernels", "warns"),
    [(FakeSearch, None), (fail, "fails"), (DeafSearch, "find"), (LateSearch, "fails")],
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
    assert index._search_on(CPU).is_capturable == (kernels is FakeSearch)
    assert not index.is_capturable(CPU)


def regress_with_torch(
    features, rows, rests, more, half_squares, distances, owners, left_out, usual,
    n, n_rows, scale, LEAVES, **constants,
):  # fmt: skip
    """Do what the kernel does."""
    y = torch.cat([scale * (rows.float() + rests.float()), more], dim=1)
    near = features @ y.T - half_squares
    if LEAVES:
        near[left_out[:, None] == owners] = -torch.inf
    usual.copy_(torch.softmax(near, dim=1) @ distances)


def regress_wrongly(*args, **constants):
    regress_with_torch(*args, **constants)
    args[8].mul_(1.1)


def leave_nothing_out(*args, LEAVES, **constants):
    regress_with_torch(*args, LEAVES=False, **constants)


@pytest.fixture
def variation(rng):
    """Of three images: one whose patches vary a lot, and two whose vary little."""
    rows = rng.normal(size=(3, 60, 18)).astype(np.float32)
    index = type("Index", (), {"query_exactly": lambda self, x, out: x.abs().mean(2)})
    variation = Variation(PatchSample(rows, np.arange(3), np.arange(3)), index(), CPU)
    variation.distances[0] *= 3
    return variation


def fail_later(*args, **constants):
    n_patches = args[9]
    return fail() if n_patches > 90 else regress_with_torch(*args, **constants)


@pytest.mark.parametrize(
    ("kernel", "n_told"),
    [
        (regress_with_torch, 0),
        (fail, 1),
        (regress_wrongly, 1),
        (leave_nothing_out, 1),
        (fail_later, 1),
    ],
)
def test_the_kernel_of_what_is_usual_is_used_where_it_is_right(
    variation, monkeypatch, kernel, n_told
):
    features = torch.from_numpy(variation.sample.rows)
    expected = variation.usual(features, [0, 1, -1])
    variation._on_device = None
    module = types.SimpleNamespace(regress=Kernel(kernel))
    monkeypatch.setattr(regression, "load_kernels", lambda *args: module)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [variation.usual(features, [0, 1, -1]) for _ in range(2)]
    assert len(told) == n_told
    assert all("what is usual on this GPU" in str(x.message) for x in told)
    assert variation._on_device.regress.uses_kernels == (n_told == 0)
    torch.testing.assert_close(found[1], expected, rtol=1e-3, atol=0)
