"""Kernels of a GPU: on one, or with Triton and TRITON_INTERPRET=1 step by step."""

import pytest
import torch
from settings import SEED

from skpatchsvdd._encoding import fused
from skpatchsvdd._encoding.networks import run_layer
from skpatchsvdd._encoding.registry import make_encoder
from skpatchsvdd._utils import exact_convolutions

pytestmark = pytest.mark.wide


def make_images(device, n=2, size=80, n_channels=3):
    generator = torch.Generator().manual_seed(SEED)
    images = torch.rand(n, n_channels, size, size, generator=generator) - 0.5
    return images.to(device)


@pytest.mark.parametrize("n_in", [32, 64, 128])
@pytest.mark.parametrize("n_out", [32, 64, 128])
@pytest.mark.parametrize(
    ("size", "stride", "dilation", "is_last"),
    [(3, 1, 1, False), (3, 2, 2, True), (2, 3, 4, False)],
)
def test_a_fused_layer_equals_the_plain_one(
    kernel_device, n_in, n_out, size, stride, dilation, is_last
):
    generator = torch.Generator().manual_seed(SEED)
    conv = torch.nn.Conv2d(n_in, n_out, size)
    for p in conv.parameters():
        torch.nn.init.normal_(p, std=0.1, generator=generator)
    conv = conv.to(kernel_device).requires_grad_(False)
    images = make_images(kernel_device, size=17, n_channels=n_in)
    with exact_convolutions(torch.device(kernel_device)):
        expected = run_layer(conv, images, stride, dilation, is_last)
        found = fused.FusedLayers()(conv, images, stride, dilation, is_last)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("kind", "dim"), [("hierarchical", 64), ("hierarchical", 20)])
def test_features_are_those_of_plain_layers(kernel_device, kind, dim):
    generator = torch.Generator().manual_seed(SEED)
    encoder = make_encoder(kind, 3, dim, 64, generator)
    images = make_images("cpu")
    encoder.standardize(images)
    encoder, images = encoder.to(kernel_device), images.to(kernel_device)
    with torch.inference_mode(), exact_convolutions(torch.device(kernel_device)):
        expected = encoder.encode_images(images, (4, 16))
        encoder.run_layer = fused.FusedLayers()
        found = encoder.encode_images(images, (4, 16))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=2e-5)


def test_weights_are_sums_of_two_that_matrix_units_take():
    weight = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(SEED))
    for factor in (1e-6, 1.0, 1e6):
        kept, rest, scale = fused._split_weight(factor * weight)
        assert kept.dtype == rest.dtype == torch.float16
        assert torch.isfinite(kept).all()
        found = scale * (kept.double() + rest.double()).permute(3, 2, 0, 1)
        error = (found / (factor * weight) - 1).abs().max()
        assert error < 2.0**-21


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_wrong_kernels_are_not_used(monkeypatch):
    encoder = make_encoder("hierarchical", 3, 64, 64, torch.Generator()).cuda()
    encoder.standardize(make_images("cuda"))
    with torch.inference_mode(), exact_convolutions():
        fused.use_fused_layers(encoder)
        assert encoder.run_layer.uses_kernels
        del encoder.run_layer
        monkeypatch.setattr(fused, "SLOPE", 0.5)
        with pytest.warns(UserWarning, match="fast convolution on this GPU"):
            fused.use_fused_layers(encoder)
    assert encoder.run_layer is run_layer


def test_a_steep_encoder_is_compared_as_float32_is(kernel_device, monkeypatch):
    encoder = make_encoder("hierarchical", 3, 64, 64, torch.Generator())
    encoder.standardize(make_images("cpu"))
    for p in encoder.parameters():
        p.data *= 2.2
    encoder = encoder.to(kernel_device).requires_grad_(False)
    monkeypatch.setattr(fused, "_DIFFERENCE", 1e-9)
    device = torch.device(kernel_device)
    with torch.inference_mode(), exact_convolutions(device):
        layers = fused.FusedLayers(), run_layer
        assert fused._keep_features(*layers, encoder, device)
        monkeypatch.setattr(fused, "SLOPE", 0.3)
        assert not fused._keep_features(*layers, encoder, device)
