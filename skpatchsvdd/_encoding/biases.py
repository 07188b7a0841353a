"""What follows a convolution in training on a GPU, with gradients in few passes."""

import functools
import importlib

import torch
import torch.nn.functional as F

from skpatchsvdd._utils import runs_kernels, try_kernels

# Pixels that a program of a kernel looks at together, and programs at most: their sums
# are added up in the end.
_PIXELS, _PROGRAMS = 64, 264
# Images that kernels are tried on, and how much numbers may differ there, as a fraction
# of the largest, by the bytes of a number: bf16 has three digits.
_TRIED, _DIFFERENCES = (2, 24, 24), {2: 0.03, 4: 1e-4}


def add_bias(x, bias, slope):
    """Add one number to each channel, in place, and bend what is below 0.

    Parameters
    ----------
    x : tensor of shape (n, n_channels, height, width)
        On a GPU.
    bias : tensor of shape (n_channels,)
        What is added.
    slope : float
        What values below 0 are multiplied with; 1 leaves them.

    Returns
    -------
    bent : tensor of the shape of x
    """
    if slope != 1 and are_right(x.device, x.dtype, len(bias), slope):
        x = x.contiguous(memory_format=torch.channels_last)
        return _AddAndBend.apply(x, bias, slope)
    return _add_plainly(x, bias, slope)


def _add_plainly(x, bias, slope):
    x = _Add.apply(x, bias)
    return x if slope == 1 else F.leaky_relu(x, slope)


@functools.cache
def are_right(device, dtype, n_channels, slope):
    """Whether kernels add biases, and find gradients, as the plain way does."""
    is_power_of_two = n_channels & (n_channels - 1) == 0
    if not is_power_of_two or not runs_kernels(device):
        return False
    generator = torch.Generator(device).manual_seed(0)
    n, height, width = _TRIED
    x = torch.randn(n, n_channels, height, width, generator=generator, device=device)
    x = x.to(dtype, memory_format=torch.channels_last)
    # Biases that lose nothing in x's type: else signs of sums may differ, rightly.
    bias = torch.randn(n_channels, generator=generator, device=device)
    bias = bias.to(dtype).float()
    parts = x, bias, slope
    made = try_kernels(
        "sum of biases",
        lambda: _AddAndBend,
        lambda way: _add_alike(way.apply, _add_plainly, *parts),
    )
    return made is not None


@torch.enable_grad()
def _add_alike(way, plain, x, bias, slope):
    """Whether both ways give the same numbers and gradients."""
    results = []
    with torch.autocast(x.device.type, enabled=False):
        for add in (way, plain):
            own, bias = x.clone().requires_grad_(), bias.clone().requires_grad_()
            bent = add(own * 1, bias, slope)  # a copy, which it may write to
            gradients = torch.autograd.grad((bent * x).sum(), (own, bias))
            results.append([bent.detach(), *gradients])
    limit = _DIFFERENCES[x.element_size()]
    return all(
        float((found - expected).abs().max() / expected.abs().max()) <= limit
        for found, expected in zip(*results, strict=True)
    )


class _Add(torch.autograd.Function):
    """Adds one number to each channel; the gradient is a product with ones.

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


class _AddAndBend(torch.autograd.Function):
    """Adds one number to each channel and bends, in one pass each way."""

    @staticmethod
    def forward(ctx, x, bias, slope):
        kernels = importlib.import_module("skpatchsvdd._encoding.kernels")
        n_pixels = x.numel() // len(bias)
        grid = (-(-n_pixels // _PIXELS),)
        kernels.bend[grid](x, bias, n_pixels, slope, C=len(bias), PIXELS=_PIXELS)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    def backward(ctx, grad):
        (bent,) = ctx.saved_tensors
        kernels = importlib.import_module("skpatchsvdd._encoding.kernels")
        grad = grad.contiguous(memory_format=torch.channels_last)
        n_channels = bent.shape[1]
        n_pixels = bent.numel() // n_channels
        n_programs = min(-(-n_pixels // _PIXELS), _PROGRAMS)
        before = torch.empty_like(grad)
        sums = torch.empty(n_programs, n_channels, device=grad.device)
        kernels.unbend[(n_programs,)](
            grad, bent, before, sums, n_pixels, ctx.slope, C=n_channels, PIXELS=_PIXELS
        )
        return before, sums.sum(dim=0), None
