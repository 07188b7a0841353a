"""Synthetic defects on the device, which training separates from normal patches."""

import math

import torch
import torch.nn.functional as F

# Every image gets one shape for certain and the others with even odds.
_N_SHAPES = 3
# From specks and thin scars to patches of 35 x 35 pixels, half to wholly opaque, with
# tints that are seen for certain; chosen among others by bench_quality.py.
_AREA = (12.0, 1200.0)  # pixels
_ASPECT = 20.0
_OPACITY = (0.5, 1.0)
_TINT = (0.1, 0.5)
_COLOUR = 0.05  # deviation of a tint from channel to channel
_SMOOTHED = 9  # pixels of the blur: fine texture goes, form stays
# By how much the image moves, down and right, where a defect is a small displacement.
_MOVES = ((4, 0), (0, 4), (-3, 3))
# Kinds of filling that are tints. Every piece of `_pieces` is one more kind.
_N_TINTS = 2


def damage_images(images, draws):
    """Put synthetic defects on images.

    A defect is an ellipse or a rectangle of any direction, from a speck or a thin scar
    to a patch of 35 x 35 pixels, filled with a piece of the same image from elsewhere,
    mirrored or turned round, with a piece of another image, with the image's own blur,
    with the image moved by a few pixels, or with a lighter or darker tint.

    Parameters
    ----------
    images : tensor of shape (n, n_channels, height, width)
        On the 0..1 scale.
    draws : Draws
        Where the random numbers come from.

    Returns
    -------
    damaged : tensor of shape (n, n_channels, height, width)
    """
    n = len(images)
    pieces = _pieces(images)
    damaged = images
    for i in range(_N_SHAPES):
        opacity = draws.uniform(*_OPACITY, (n, 1, 1, 1))
        if i > 0:
            opacity = opacity * draws.integers(0, 2, (n, 1, 1, 1))
        shape = _draw_shapes(images.shape, draws)
        filling = _draw_fillings(images, pieces, draws)
        damaged = torch.lerp(damaged, filling, shape * opacity)
    return damaged


def _pieces(images):
    """Return what a defect can be filled with, (n_pieces, n, n_channels, ...)."""
    height, width = images.shape[2:]
    return torch.stack(
        [
            images.roll(1, dims=0),
            images.flip(2),
            images.flip(3),
            images.flip((2, 3)),
            images.roll((height // 2, width // 3), dims=(2, 3)),
            _smooth(images),
            *(images.roll(move, dims=(2, 3)) for move in _MOVES),
        ]
    )


def _smooth(images):
    half = _SMOOTHED // 2
    x = F.pad(images, (half,) * 4, mode="reflect")
    return F.avg_pool2d(F.avg_pool2d(x, (_SMOOTHED, 1), 1), (1, _SMOOTHED), 1)


def _draw_shapes(image_shape, draws):
    """Draw one soft-edged shape for each image, (n, 1, height, width) in 0..1."""
    n, _, height, width = image_shape
    one = (n, 1, 1)
    rows, cols = (
        torch.arange(length, device=draws.device) + 0.5 for length in (height, width)
    )
    down = rows[:, None] - draws.uniform(0, height, one)
    right = cols - draws.uniform(0, width, one)
    angle = draws.uniform(0, math.pi, one)
    along = right * angle.cos() + down * angle.sin()
    beside = down * angle.cos() - right * angle.sin()
    area = draws.uniform(*map(math.log, _AREA), one).exp()
    aspect = draws.uniform(-math.log(_ASPECT), math.log(_ASPECT), one).exp()
    half_length = (area * aspect).sqrt() / 2
    half_width = (area / aspect).sqrt() / 2
    along, beside = along.abs() / half_length, beside.abs() / half_width
    is_round = draws.integers(0, 2, one) > 0
    reach = torch.where(
        is_round, torch.hypot(along, beside), torch.maximum(along, beside)
    )
    depth = (1 - reach) * torch.minimum(half_length, half_width)  # in pixels
    return (depth + 0.5).clamp(0, 1)[:, None]


def _draw_fillings(images, pieces, draws):
    """Draw for each image what its shape is filled with."""
    n, n_channels = images.shape[:2]
    one = (n, 1, 1, 1)
    sign = 2 * draws.integers(0, 2, one) - 1
    tint = sign * draws.uniform(*_TINT, one)
    tinted = images + tint + draws.normal(_COLOUR, (n, n_channels, 1, 1))
    kind = draws.integers(0, len(pieces) + _N_TINTS, (n,))
    piece = pieces[kind.clamp(max=len(pieces) - 1), torch.arange(n, device=kind.device)]
    return torch.where((kind < len(pieces)).view(one), piece, tinted)
