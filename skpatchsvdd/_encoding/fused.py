"""Layers of an encoder on a GPU's matrix units, as exact as float32 is."""

import copy
import importlib
import math

import torch

from skpatchsvdd._encoding.networks import SLOPE, run_layer
from skpatchsvdd._gpu import KernelWithFallback, runs_kernels, split_halves

# Channels that fit the matrix units and registers.
_CHANNELS = (32, 64, 128)
# Pixels and channels of one product.
_PIXELS, _AT_A_TIME = 128, 32
# Kernels count numbers in 32 bits.
_MOST_NUMBERS = 2**31
# Size of the images that layers are tried on, and how much features may differ there,
# or else by how many times as much as those in float32 differ from those in float64.
_TRIED, _DIFFERENCE, _TIMES = 72, 1e-4, 4


def use_fused_layers(encoder):
    """Let an encoder on a GPU run its layers with kernels, if they are right there.

    A matrix unit takes half precision, ten bits after the point. A number is the sum of
    two of these, and three of four products are added up in float32: what is left out
    is a millionth of the product at most, as float32 loses elsewhere.

    Parameters
    ----------
    encoder : PatchEncoder
        On its device; changed in place.
    """
    device = next((p.device for p in encoder.parameters()), torch.device("cpu"))
    layers = KernelWithFallback(
        "convolution",
        lambda: FusedLayers() if runs_kernels(device) else None,
        lambda: run_layer,
        lambda *layers: _keep_features(*layers, encoder, device),
    )
    encoder.run_layer = layers if layers.uses_kernels else run_layer


def _keep_features(fused, plain, encoder, device):
    """Whether an encoder has the same features by both kinds of layers."""
    generator = torch.Generator(device).manual_seed(0)
    size = max(_TRIED, encoder.patch_sizes[-1] + encoder.dense_stride)
    shape = (2, encoder.config[0], size, size)
    images = torch.rand(shape, generator=generator, device=device) - 0.5
    strides = (encoder.dense_stride,) * len(encoder.patch_sizes)
    encoder.run_layer = plain
    expected = encoder.encode_images(images, strides)
    encoder.run_layer = fused
    found = encoder.encode_images(images, strides)
    if _find_difference(found, expected) <= _DIFFERENCE:
        return True
    # A steep encoder makes much of every rounding, of those of float32 as well.
    exact = copy.deepcopy(encoder).to(device).double()  # with plain layers
    exact = exact.encode_images(images.double(), strides)
    return _find_difference(found, exact) <= _TIMES * _find_difference(expected, exact)


def _find_difference(found, expected):
    """Return the largest difference of features, a list by scale."""
    pairs = zip(found, expected, strict=True)
    return float(torch.stack([(x - y).abs().max() for x, y in pairs]).max())


class FusedLayers:
    """Runs layers as `run_layer` does, those that kernels are for by these."""

    def __init__(self):
        self._kernels = importlib.import_module("skpatchsvdd._encoding.kernels")
        self._weights = {}

    def __call__(self, conv, x, stride, dilation, is_last):
        """Run a layer; see `run_layer`."""
        n_out, n_in, size, _ = conv.weight.shape
        x = x.contiguous(memory_format=torch.channels_last)
        n_numbers = max(x.numel(), len(x) * n_out * x.shape[2] * x.shape[3])
        if {n_in, n_out} - set(_CHANNELS) or n_numbers > _MOST_NUMBERS:
            return run_layer(conv, x, stride, dilation, is_last)
        if conv not in self._weights:
            self._weights[conv] = _split_weight(conv.weight)
        *weights, scale = self._weights[conv]
        height, width = (
            (length - (size - 1) * dilation - 1) // stride + 1 for length in x.shape[2:]
        )
        out = x.new_empty(len(x), height, width, n_out)
        n = math.prod(out.shape[:3])
        self._kernels.convolve[(-(-n // _PIXELS),)](
            x,
            *weights,
            conv.bias,
            out,
            n,
            *x.shape[2:],
            height,
            width,
            scale,
            1.0 if is_last else SLOPE,
            STRIDE=stride,
            DILATION=dilation,
            SIZE=size,
            C=n_in,
            D=n_out,
            PIXELS=_PIXELS,
            AT_A_TIME=_AT_A_TIME,
            num_warps=8,
        )
        out = out.permute(0, 3, 1, 2)
        return torch.tanh(out) if is_last else out


def _split_weight(weight):
    """Return weights as two of half precision, (size, size, n_in, n_out), and a scale.

    See `split_halves`.
    """
    return split_halves(weight.detach().permute(2, 3, 1, 0).contiguous())
