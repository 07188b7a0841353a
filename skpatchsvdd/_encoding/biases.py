"""Bias and activation after a convolution, in training on a GPU, in few passes."""

import functools
import importlib

import torch
import torch.nn.functional as F

from skpatchsvdd._gpu import KernelWithFallback, runs_kernels

# Pixels that a program of a kernel takes at a time, and programs at most: the sum of
# each is added up in the end.
_PIXELS, _PROGRAMS = 64, 264
# Images that kernels are tried on, and how much numbers may differ there, as a fraction
# of the largest, by the bytes of a number: bf16 has three digits.
_TRIED, _DIFFERENCES = (2, 24, 24), {2: 0.03, 4: 1e-4}


def add_bias(x, bias, slope):
    """Add a bias to each channel, in place, and apply a leaky ReLU.

    Parameters
    ----------
    x : tensor of shape (n, n_channels, height, width)
        On a GPU.
    bias : tensor of shape (n_channels,)
        What is added.
    slope : float
        Slope of the activation below 0; 1 for none.

    Returns
    -------
    activated : tensor of the shape of x
    """
    if slope == 1:
        return _Add.apply(x, bias)
    return make_add(x.device, x.dtype, len(bias), slope)(x, bias, slope)


@functools.cache
def make_add(device, dtype, n_channels, slope):
    """Return the function that adds biases and applies the activation on a device."""

    def make_fused():
        is_power_of_two = n_channels & (n_channels - 1) == 0
        return _add_fused if is_power_of_two and runs_kernels(device) else None

    def is_right(fused, plain):
        generator = torch.Generator(device).manual_seed(0)
        n, height, width = _TRIED
        shape = n, n_channels, height, width
        x = torch.randn(shape, generator=generator, device=device)
        x = x.to(dtype, memory_format=torch.channels_last)
        # Biases that lose nothing in x's type: else signs of sums may differ, rightly.
        bias = torch.randn(n_channels, generator=generator, device=device)
        bias = bias.to(dtype).float()
        return _are_alike(fused, plain, x, bias, slope)

    return KernelWithFallback(
        "sum of biases", make_fused, lambda: _add_plainly, is_right
    )


@torch.enable_grad()
def _are_alike(fused, plain, x, bias, slope):
    """Whether both functions give the same numbers and gradients."""
    results = []
    with torch.autocast(x.device.type, enabled=False):
        for add in (fused, plain):
            given = x.clone().requires_grad_()
            bias = bias.detach().requires_grad_()
            activated = add(given * 1, bias, slope)  # a copy, which it may write to
            gradients = torch.autograd.grad((activated * x).sum(), (given, bias))
            results.append([activated.detach(), *gradients])
    limit = _DIFFERENCES[x.element_size()]
    return all(
        float((found - expected).abs().max() / expected.abs().max()) <= limit
        for found, expected in zip(*results, strict=True)
    )


def _add_plainly(x, bias, slope):
    return F.leaky_relu(_Add.apply(x, bias), slope)


def _add_fused(x, bias, slope):
    x = x.contiguous(memory_format=torch.channels_last)
    return _AddAndActivate.apply(x, bias, slope)


class _Add(torch.autograd.Function):
    """Adds a bias to each channel; the gradient is a product with ones.

    That takes a third of the time of the sum over all pixels.
    """

    @staticmethod
    def forward(ctx, x, bias):
        ctx.mark_dirty(x)
        return x.add_(bias.to(x.dtype)[:, None, None])

    @staticmethod
    def backward(ctx, grad):
        columns = grad.permute(0, 2, 3, 1).flatten(0, 2).T  # (n_channels, n_pixels)
        return grad, columns @ grad.new_ones(columns.shape[1])


class _AddAndActivate(torch.autograd.Function):
    """Adds a bias to each channel and applies a leaky ReLU, in one pass each way."""

    @staticmethod
    def forward(ctx, x, bias, slope):
        kernels = importlib.import_module("skpatchsvdd._encoding.kernels")
        n_pixels = x.numel() // len(bias)
        grid = (-(-n_pixels // _PIXELS),)
        kernels.activate[grid](x, bias, n_pixels, slope, C=len(bias), PIXELS=_PIXELS)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, grad):
        (activated,) = ctx.saved_tensors
        kernels = importlib.import_module("skpatchsvdd._encoding.kernels")
        grad = grad.contiguous(memory_format=torch.channels_last)
        n_channels = activated.shape[1]
        n_pixels = activated.numel() // n_channels
        n_programs = min(-(-n_pixels // _PIXELS), _PROGRAMS)
        before = torch.empty_like(grad)
        sums = torch.empty(n_programs, n_channels, device=grad.device)
        kernels.activate_backward[(n_programs,)](
            grad,
            activated,
            before,
            sums,
            n_pixels,
            ctx.slope,
            C=n_channels,
            PIXELS=_PIXELS,
        )
        return before, sums.sum(dim=0), None
