"""Damage: what a specimen must not have, and where."""

import math

import torch
import torch.nn.functional as F

from procedural.draws import choose, happens, log_uniform, normal, uniform
from procedural.fields import grid

# Pieces of damage an image has, and the ways to fill one: with another place of the
# image, with another image, another brightness, its blur, what lies beside it, or a
# flat colour.
N_PIECES = 5
_FILLINGS = 6


def draw_damage(generator, images):
    """Damage images at a few places.

    Parameters
    ----------
    generator : torch.Generator
        Draws it.
    images : tensor of shape (n, 3, size, size)
        Undamaged.

    Returns
    -------
    damaged : tensor of shape (n, 3, size, size)
    mask : tensor of shape (n, size, size)
        How much of each pixel is damaged, 0 to 1.
    """
    n, _, size, _ = images.shape
    damaged, mask = images, images.new_zeros(n, size, size)
    blurred = F.avg_pool2d(images, 9, 1, 4, count_include_pad=False)
    shifts = torch.randint(
        12, size - 12, (N_PIECES, 4), generator=generator, device=generator.device
    )
    for shift in shifts.tolist():
        cover = _draw_piece(generator, n, size)
        filling = _draw_filling(generator, images, blurred, shift)
        is_faint = happens(generator, (n, 1, 1), 0.3)
        opacity = torch.where(is_faint, uniform(generator, (n, 1, 1), 0.3, 1.0), 1.0)
        damaged = damaged + (cover * opacity)[:, None] * (filling - damaged)
        mask = torch.maximum(mask, cover)
    changed = (damaged - images).abs().amax(dim=1)
    # What looks the same is not damaged.
    return damaged, mask * (changed > 0.03)


def _draw_piece(g, n, size):
    """Draw blots and scratches, (n, size, size)."""
    y, x = grid(size, g.device)
    middle = uniform(g, (2, n, 1, 1), 0.05 * size, 0.95 * size)
    turn = uniform(g, (n, 1, 1), 0.0, math.pi)
    extent = log_uniform(g, (n, 1, 1), 2.5, 22.0)
    is_scratch = happens(g, (n, 1, 1), 0.35)
    aspect = log_uniform(g, (n, 1, 1), 1.0, 2.5)
    width = torch.where(
        is_scratch, log_uniform(g, (n, 1, 1), 0.8, 2.5), extent / aspect
    )
    length = torch.where(is_scratch, 1.5 * extent + 4, extent)
    x, y = x - middle[0], y - middle[1]
    u, v = turn.cos() * x + turn.sin() * y, turn.cos() * y - turn.sin() * x
    v = v + torch.where(is_scratch, 0.3 * normal(g, (n, 1, 1)), 0.0) * u**2 / length
    uneven = F.interpolate(
        normal(g, (n, 1, size // 6, size // 6)), (size, size), mode="bilinear"
    )[:, 0]
    uneven = torch.where(is_scratch, 0.1, 0.35) * uneven
    radius = ((u / length) ** 2 + (v / width) ** 2).sqrt()
    return torch.sigmoid((1 + uneven - radius) * width.clamp(max=6.0) * 2)


def _draw_filling(g, images, blurred, shift):
    """Return what damage shows, (n, 3, size, size)."""
    n = len(images)
    down, across, other, near = shift
    elsewhere = images.roll((down, across), dims=(2, 3)).flip(3)
    foreign = images.roll(1 + other % max(n - 1, 1), dims=0)
    near = 3 + near % 6
    light = log_uniform(g, (n, 1, 1, 1), 0.05, 0.5)
    light = torch.where(happens(g, (n, 1, 1, 1), 0.5), light, -light)
    tint = light * (1 + 0.3 * normal(g, (n, 3, 1, 1)))
    is_grey = happens(g, (n, 1, 1, 1), 0.5)
    fillings = (
        elsewhere,
        foreign,
        images + torch.where(is_grey, light, tint),
        blurred,
        images.roll((near, -near), dims=(2, 3)),
        uniform(g, (n, 3, 1, 1)).expand_as(images),
    )
    chosen = choose(g, (n, 1, 1, 1), (1,) * _FILLINGS)
    return sum(torch.where(chosen == i, x, 0.0) for i, x in enumerate(fillings))
