"""Whatever uses kernels is tried first: here with kernels that stand in for them."""

import sys
import types
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from skpatchsvdd._bank import fused_regression
from skpatchsvdd._bank.variation import PatchSample, Variation
from skpatchsvdd._encoding import biases
from skpatchsvdd._encoding import fused as layers
from skpatchsvdd._encoding.networks import run_layer
from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._utils import try_kernels

CPU = torch.device("cpu")


class Kernel:
    """Stands in for a kernel: a function of what that is given."""

    def __init__(self, function):
        self._function = function

    def __getitem__(self, grid):
        return self._function


def fail(*args, **kwargs):
    raise RuntimeError("out of resource: shared memory")


def test_what_is_right_is_used():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert try_kernels("search", lambda: "made", lambda made: True) == "made"


@pytest.mark.parametrize(
    ("make", "is_right", "reason"),
    [
        (fail, lambda made: True, r"fails \(RuntimeError: out of resource"),
        (lambda: "made", fail, r"fails \(RuntimeError: out of resource"),
        (lambda: "made", lambda made: False, "does not find what the plain one"),
    ],
)
def test_what_fails_or_errs_is_told_and_not_used(make, is_right, reason):
    with pytest.warns(UserWarning, match=f"the fast search on this GPU {reason}"):
        assert try_kernels("search", make, is_right) is None


def test_memory_that_runs_out_is_no_fault_of_kernels():
    def run_out(made):
        raise torch.cuda.OutOfMemoryError

    with pytest.raises(torch.cuda.OutOfMemoryError):
        try_kernels("search", lambda: "made", run_out)


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
    variation = Variation(PatchSample(rows, np.arange(3)), index(), CPU)
    variation.distances[0] *= 3
    return variation


def use_kernel(monkeypatch, function):
    kernels = types.SimpleNamespace(regress=Kernel(function))
    monkeypatch.setattr(fused_regression, "load_kernels", lambda *args: kernels)


def test_the_kernel_of_what_is_usual_is_used_where_it_is_right(variation, monkeypatch):
    features = torch.from_numpy(variation.sample.rows)
    expected = variation.usual(features, [0, 1, -1])
    variation._on_device = None
    use_kernel(monkeypatch, regress_with_torch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = variation.usual(features, [0, 1, -1])
    assert variation._on_device.fused is not None
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kernel", [fail, regress_wrongly, leave_nothing_out])
def test_the_kernel_of_what_is_usual_is_not_used_unless_it_is_right(
    variation, monkeypatch, kernel
):
    features = torch.from_numpy(variation.sample.rows)
    expected = variation.usual(features, [0, 1, -1])
    variation._on_device = None
    use_kernel(monkeypatch, kernel)
    with pytest.warns(UserWarning, match="what is usual on this GPU") as told:
        found = [variation.usual(features, [0, 1, -1]) for _ in range(2)]
    assert len(told) == 1
    assert torch.equal(found[1], expected)


def bend_with_torch(x, bias, n_pixels, slope, **constants):
    x.copy_(F.leaky_relu(x + bias[:, None, None].to(x.dtype), slope))


def unbend_with_torch(grad, bent, before, sums, n_pixels, slope, **constants):
    before.copy_(torch.where(bent > 0, grad, slope * grad))
    sums.zero_()
    sums[0] = before.float().sum(dim=(0, 2, 3))


def unbend_wrongly(*args, **constants):
    unbend_with_torch(*args, **constants)
    args[3].mul_(2)


@pytest.fixture
def use_biases(monkeypatch):
    def use(bend, unbend):
        module = types.ModuleType("kernels")
        module.bend, module.unbend = Kernel(bend), Kernel(unbend)
        monkeypatch.setitem(sys.modules, "skpatchsvdd._encoding.kernels", module)
        monkeypatch.setattr(biases, "runs_kernels", lambda device: True)

    biases.are_right.cache_clear()
    yield use
    biases.are_right.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_biases_are_used_where_they_are_right(use_biases, dtype):
    use_biases(bend_with_torch, unbend_with_torch)
    assert biases.are_right(CPU, dtype, 32, 0.1)


@pytest.mark.parametrize(
    ("bend", "unbend"),
    [
        (fail, unbend_with_torch),
        (bend_with_torch, fail),
        (bend_with_torch, unbend_wrongly),
    ],
)
def test_kernels_of_biases_are_not_used_unless_they_are_right(use_biases, bend, unbend):
    use_biases(bend, unbend)
    x = torch.randn(2, 32, 5, 5, generator=torch.Generator().manual_seed(0))
    bias = torch.ones(32, requires_grad=True)
    with pytest.warns(UserWarning, match="biases on this GPU") as told:
        found = [biases.add_bias(x.clone(), bias, 0.1) for _ in range(2)]
    assert len(told) == 1
    torch.testing.assert_close(found[1], F.leaky_relu(x + 1, 0.1))


@pytest.mark.parametrize("convolve", [fail, lambda x, *args, **constants: None])
def test_layers_are_plain_unless_kernels_are_right(monkeypatch, convolve):
    module = types.ModuleType("kernels")
    module.convolve = Kernel(convolve)
    monkeypatch.setitem(sys.modules, "skpatchsvdd._encoding.kernels", module)
    monkeypatch.setattr(layers, "runs_kernels", lambda device: True)
    encoder = make_encoder("hierarchical", 3, 64, 64, torch.Generator())
    encoder.standardize(torch.rand(2, 3, 80, 80))
    with (
        torch.inference_mode(),
        pytest.warns(UserWarning, match="fast convolution on this GPU"),
    ):
        layers.use_fused_layers(encoder)
    assert encoder.run_layer is run_layer
