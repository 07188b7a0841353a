"""What a camera adds to a scene: light, blur, noise, and a file's blocks."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from procedural.draws import happens, log_uniform, normal, uniform

_BLOCK = 8


class Shots(NamedTuple):
    """Settings of a camera for n images, tensors of shape (n, ...)."""

    gain: torch.Tensor
    offset: torch.Tensor
    gamma: torch.Tensor
    light: torch.Tensor
    vignette: torch.Tensor
    blur: torch.Tensor
    noise: torch.Tensor
    quantum: torch.Tensor


def draw_shots(generator, n):
    """Draw the settings of n images."""
    g = generator
    is_blurred, is_file = happens(g, n, 0.5), happens(g, n, 0.3)
    tint = 1 + 0.04 * normal(g, (n, 3, 1, 1))
    return Shots(
        gain=tint * log_uniform(g, (n, 1, 1, 1), 0.8, 1.25),
        offset=uniform(g, (n, 1, 1, 1), -0.08, 0.08),
        gamma=log_uniform(g, (n, 1, 1, 1), 0.8, 1.25),
        light=normal(g, (n, 1, 4, 4)) * log_uniform(g, (n, 1, 1, 1), 0.005, 0.12),
        vignette=uniform(g, (n, 1, 1, 1), 0.0, 0.15),
        blur=torch.where(is_blurred, uniform(g, n, 0.0, 1.0), 0.0)[:, None, None, None],
        noise=log_uniform(g, (n, 1, 1, 1), 0.002, 0.04),
        quantum=torch.where(is_file, log_uniform(g, n, 0.01, 0.1), 0.0),
    )


def photograph(generator, images, shots, is_grey):
    """Return images as a camera sees them, (n, 3, height, width), in 0..1."""
    size = images.shape[2:]
    x = images.clamp(0, 1) ** shots.gamma * shots.gain + shots.offset
    light = F.interpolate(shots.light, size, mode="bicubic", align_corners=False)
    axis = [torch.linspace(-1, 1, k, device=x.device) for k in size]
    away = axis[0][:, None] ** 2 + axis[1][None] ** 2
    x = x * (1 + light) * (1 - shots.vignette * away)
    x = x + shots.blur * (_blur(x) - x)
    x = x + shots.noise * normal(generator, x.shape)
    x = torch.where(is_grey[:, None, None, None], x.mean(1, keepdim=True), x)
    return _quantize(x, shots.quantum).clamp(0, 1)


def _blur(images):
    weights = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], device=images.device) / 16
    kernel = (weights[:, None] * weights)[None, None].expand(images.shape[1], 1, 5, 5)
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate")
    return F.conv2d(padded, kernel, groups=images.shape[1])


def _quantize(images, quantum):
    """Round the cosines of blocks, high ones coarsely, as files of photographs do."""
    n, c, height, width = images.shape
    k = torch.arange(_BLOCK, device=images.device)
    basis = torch.cos(math.pi * (k[None] + 0.5) * k[:, None] / _BLOCK)
    basis = basis * math.sqrt(2 / _BLOCK)
    basis[0] /= math.sqrt(2)
    blocks = images.reshape(n, c, height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK)
    waves = torch.einsum("ui,nchiwj,vj->nchuwv", basis, blocks, basis)
    steps = quantum[:, None, None, None, None, None] * (
        1 + k[:, None, None] + k[None, None]
    )
    rounded = torch.where(steps > 0, (waves / (steps + 1e-9)).round() * steps, waves)
    back = torch.einsum("ui,nchuwv,vj->nchiwj", basis, rounded, basis)
    return back.reshape(n, c, height, width)
