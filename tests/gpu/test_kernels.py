import sys
import types

import pytest
import torch
from settings import SEED

from skpatchsvdd._gpu import kernels, runs_kernels, split_halves


@pytest.fixture(autouse=True)
def _forget():
    runs_kernels.cache_clear()
    yield
    runs_kernels.cache_clear()


def test_a_cpu_runs_no_kernels():
    assert not runs_kernels(torch.device("cpu"))


def test_without_triton_there_are_none(monkeypatch):
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    assert not runs_kernels(torch.device("cuda"))


def test_a_compiler_that_is_missing_is_told_of_once(monkeypatch):
    class Kernel:
        def __getitem__(self, grid):
            raise RuntimeError("Failed to find C compiler")

    module = types.ModuleType("trial_kernels")
    module.double = Kernel()
    name = "skpatchsvdd._gpu.trial_kernels"
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(torch, "arange", lambda *args, **kwargs: torch.zeros(16))
    with pytest.warns(
        UserWarning, match=r"take longer.*Failed to find C compiler.*gcc"
    ):
        assert not runs_kernels(torch.device("cuda"))
    assert not runs_kernels(torch.device("cuda"))  # without a warning


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_numbers_are_sums_of_two_that_matrix_units_take(factor):
    x = factor * torch.randn(48, generator=torch.Generator().manual_seed(SEED))
    kept, rest, scale = split_halves(x)
    assert kept.dtype == rest.dtype == torch.float16
    found = scale * (kept.double() + rest.double())
    assert (found / x - 1).abs().max() < 2.0**-21
