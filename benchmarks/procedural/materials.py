"""Materials: fixed sets of parameters, drawn as textures of random phase."""

import math
from typing import NamedTuple

import torch

from procedural.draws import (
    choose,
    colors,
    happens,
    log_uniform,
    uniform,
)
from procedural.fields import (
    draw_cells,
    draw_lattice,
    draw_noise,
    standardize,
)

N_MATERIALS = 2048
# The number that stands for none, where a shape is plain.
PLAIN = N_MATERIALS
# Seed of the table: the same materials whenever and wherever they are drawn.
_SEED = 20

# What a material is mostly made of, and how often.
_KINDS = ("noise", "lattice", "cells", "brushed", "wood")
_SHARES = (0.4, 0.27, 0.13, 0.12, 0.08)
_CURVES = 5


class Materials(NamedTuple):
    """Parameters of materials, tensors of shape (n, ...); see `draw_textures`."""

    kind: torch.Tensor
    exponent: torch.Tensor
    center: torch.Tensor
    width: torch.Tensor
    turn: torch.Tensor
    stretch: torch.Tensor
    period: torch.Tensor
    skew: torch.Tensor
    weights: torch.Tensor
    bend: torch.Tensor
    spacing: torch.Tensor
    walls: torch.Tensor
    roughness: torch.Tensor
    curve: torch.Tensor
    gain: torch.Tensor
    color: torch.Tensor
    contrast: torch.Tensor

    def take(self, indices):
        """Return some of the materials."""
        return Materials(*(x[indices] for x in self))


def make_materials(device, n_materials=N_MATERIALS):
    """Return the table of all materials, the same on every device."""
    g = torch.Generator().manual_seed(_SEED)
    n = n_materials
    kind = choose(g, n, _SHARES)
    is_band = happens(g, n, 0.5)
    is_grey = happens(g, (n, 1), 0.6)
    stretch = torch.where(happens(g, n, 0.5), 1.0, log_uniform(g, n, 1.0, 8.0))
    stretch = torch.where(kind == 3, log_uniform(g, n, 10.0, 60.0), stretch)
    contrast = uniform(g, (n, 3), -1.0, 1.0)
    table = Materials(
        kind=kind,
        exponent=torch.where(is_band, 0.0, uniform(g, n, 0.0, 2.2)),
        center=log_uniform(g, n, 0.015, 0.35),
        width=torch.where(is_band, uniform(g, n, 0.15, 0.7), 50.0),
        turn=uniform(g, n, 0.0, math.pi),
        stretch=stretch,
        period=log_uniform(g, n, 4.0, 40.0),
        skew=torch.where(happens(g, n, 0.6), math.pi / 2, uniform(g, n, 0.6, 2.5)),
        weights=uniform(g, (n, 4)) * happens(g, (n, 4), 0.5)
        + torch.tensor([0.3, 0.0, 0.0, 0.0]),
        bend=torch.where(happens(g, n, 0.6), 0.0, log_uniform(g, n, 0.2, 3.0)),
        spacing=log_uniform(g, n, 5.0, 32.0),
        walls=uniform(g, n),
        roughness=log_uniform(g, n, 0.03, 0.6),
        curve=choose(g, n, (1,) * _CURVES),
        gain=log_uniform(g, n, 0.7, 4.0),
        color=colors(g, (n,)),
        contrast=torch.where(is_grey, contrast[:, :1], contrast)
        * log_uniform(g, (n, 1), 0.03, 0.6),
    )
    return Materials(*(x.to(device) for x in table))


def draw_textures(generator, materials, size, scale, turn):
    """Draw a texture of each of some materials, at a random phase.

    Parameters
    ----------
    generator : torch.Generator
        Of the device of the materials.
    materials : Materials
        n of them.
    size : int
        Pixels along both axes.
    scale, turn : tensors of shape (n,)
        By how much structures are enlarged and turned.

    Returns
    -------
    textures : tensor of shape (n, 3, size, size)
        About 0..1.
    """
    x = materials
    noise = draw_noise(
        generator,
        size,
        x.exponent,
        x.center / scale,
        x.width,
        x.turn + turn,
        x.stretch,
    )
    fields = noise.clone()
    for kind, draw in ((1, _draw_lattice), (2, _draw_cells), (4, _draw_wood)):
        chosen = torch.nonzero(x.kind == kind)[:, 0]
        if len(chosen):
            fields[chosen] = draw(
                generator,
                size,
                x.take(chosen),
                scale[chosen],
                turn[chosen],
                noise[chosen],
            )
    fields = _bend(fields, x.curve, x.gain)
    return x.color[:, :, None, None] + (fields[:, None] * x.contrast[:, :, None, None])


def _draw_lattice(generator, size, x, scale, turn, noise):
    field = draw_lattice(
        generator, size, x.period * scale, x.turn + turn, x.skew, x.weights, x.bend
    )
    return field + x.roughness[:, None, None] * noise


def _draw_cells(generator, size, x, scale, turn, noise):
    field = draw_cells(generator, size, x.spacing * scale, x.walls)
    return field + x.roughness[:, None, None] * noise


def _draw_wood(generator, size, x, scale, turn, noise):
    """Draw rings: the waves of slow noise, stretched along the grain."""
    n = len(scale)
    slow = draw_noise(
        generator,
        size,
        torch.full_like(scale, 1.5),
        0.01 / scale,
        torch.ones_like(scale),
        x.turn + turn,
        torch.full_like(scale, 6.0),
    )
    rings = torch.sin(slow * (6 + 40 / x.spacing)[:, None, None])
    return rings.view(n, size, size) + x.roughness[:, None, None] * noise


def _bend(fields, curve, gain):
    """Apply each field's curve: none, soft steps, waves, ridges or stairs."""
    x = fields * gain[:, None, None]
    curves = (
        fields,
        torch.tanh(2 * x),
        torch.sin(2 * x),
        x.abs(),
        torch.tanh(4 * (x - x.round())) + x.round(),
    )
    curve = curve[:, None, None]
    bent = sum(torch.where(curve == i, y, 0.0) for i, y in enumerate(curves))
    return standardize(bent).clamp(-3, 3)
