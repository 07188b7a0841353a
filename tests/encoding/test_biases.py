"""Kernels of a GPU: on one, or with Triton and TRITON_INTERPRET=1 step by step."""

import pytest
import torch
import torch.nn.functional as F
from settings import SEED

from skpatchsvdd._encoding import biases

pytestmark = pytest.mark.wide


def check_against_torch(device, n_channels, slope):
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(3, n_channels, 11, 13, generator=generator).to(device)
    bias = torch.randn(n_channels, generator=generator).to(device).requires_grad_()
    weights = torch.randn(x.shape, generator=generator).to(device)
    x = x.requires_grad_()
    expected = F.leaky_relu(x + bias[:, None, None], slope)
    found = biases.add_bias(x * 1, bias, slope)  # a copy, which it may write to
    torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad((y * weights).sum(), (x, bias)) for y in (found, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("slope", [0.1, 1.0])
@pytest.mark.parametrize("n_channels", [20, 64])
def test_biases_equal_torch_s(n_channels, slope):
    check_against_torch("cpu", n_channels, slope)


@pytest.mark.parametrize("n_channels", [16, 128])
def test_fused_biases_equal_torch_s(kernel_device, n_channels):
    check_against_torch(kernel_device, n_channels, 0.1)


def test_fused_biases_in_bf16(kernel_device):
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(2, 32, 70, 70, generator=generator).to(kernel_device)
    bias = torch.randn(32, generator=generator).to(kernel_device).requires_grad_()
    found = biases.add_bias(x.bfloat16(), bias, 0.1)
    assert found.dtype == torch.bfloat16
    expected = F.leaky_relu(x.bfloat16().float() + bias[:, None, None], 0.1)
    torch.testing.assert_close(found.float(), expected, rtol=0.01, atol=0.01)
    (gradient,) = torch.autograd.grad(found.float().sum(), bias)
    counts = torch.where(expected > 0, 1.0, 0.1).sum(dim=(0, 2, 3))
    torch.testing.assert_close(gradient, counts, rtol=0.01, atol=1.0)
