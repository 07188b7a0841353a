"""Scenes: shapes filled with materials, of which specimens are drawn."""

import math
from typing import NamedTuple

import torch

from procedural.draws import (
    choose,
    colors,
    happens,
    log_uniform,
    normal,
    uniform,
)
from procedural.fields import grid
from procedural.materials import PLAIN, draw_textures
from procedural.shapes import N_SHAPES, Shapes, distance_to

# Textures a scene has, and shapes at most.
N_TEXTURES, MAX_SHAPES = 5, 40
# How shapes are laid out, and how often: scattered; repeated along rows and columns; on
# a part that lies on a ground; and repeated around the middle of such a part.
SCATTERED, REPEATED, PART, ROUND = range(4)
_SHARES = (0.3, 0.2, 0.3, 0.2)
# Distances to the nearest edge are told up to this many pixels.
FAR = 32.0


class Scenes(NamedTuple):
    """What all specimens of scenes have in common; tensors of shape (n, ...).

    Attributes
    ----------
    layout, period, order : tensors of shape (n,)
        How shapes are laid out, pixels after which they are repeated, and how often
        they are repeated around the middle.
    count : tensor of int of shape (n,)
        How many shapes there are, in descending order.
    tolerance : tensor of shape (n,)
        Pixels by which specimens differ.
    is_print : tensor of shape (n,)
        Whether textures are the same in all specimens, as those of a print are.
    ids, scale, turn : tensors of shape (n, N_TEXTURES)
        The materials, enlarged and turned.
    shapes : Shapes
        Of shape (n, MAX_SHAPES, ...).
    slot, is_plain, opacity, softness : tensors of shape (n, MAX_SHAPES)
        The texture that fills a shape, unless that is plain, how much of what is below
        it stays hidden, and pixels over which its edge fades.
    color, shade : tensors of shape (n, MAX_SHAPES, 3), (n, MAX_SHAPES, 2)
        The colour of a plain shape, and by how much its light changes across it.
    """

    layout: torch.Tensor
    period: torch.Tensor
    order: torch.Tensor
    count: torch.Tensor
    tolerance: torch.Tensor
    is_print: torch.Tensor
    ids: torch.Tensor
    scale: torch.Tensor
    turn: torch.Tensor
    shapes: Shapes
    slot: torch.Tensor
    is_plain: torch.Tensor
    opacity: torch.Tensor
    softness: torch.Tensor
    color: torch.Tensor
    shade: torch.Tensor

    def take(self, indices):
        """Return some of the scenes."""
        parts = [x[indices] for x in self if not isinstance(x, Shapes)]
        shapes = Shapes(*(x[indices] for x in self.shapes))
        at = self._fields.index("shapes")
        return Scenes(*parts[:at], shapes, *parts[at:])


class Specimens(NamedTuple):
    """Images and what is known of every pixel.

    Attributes
    ----------
    images : tensor of shape (n, 3, size, size)
        About 0..1.
    material, shape : tensors of int of shape (n, size, size)
        Numbers of the material, one more than there are where it is plain, and of the
        family of shapes, the last where there is the ground.
    boundary : tensor of shape (n, size, size)
        Pixels to the nearest edge of a shape, at most `FAR`.
    """

    images: torch.Tensor
    material: torch.Tensor
    shape: torch.Tensor
    boundary: torch.Tensor


def draw_scenes(generator, n, size, n_materials):
    """Draw n scenes of size x size pixels."""
    g, s = generator, MAX_SHAPES
    layout = choose(g, n, _SHARES)
    period = log_uniform(g, n, size / 9, size / 2.2)
    is_repeated = layout == REPEATED
    is_part = layout >= PART
    shapes = _draw_shapes(g, n, size, layout, period)
    count = log_uniform(g, n, 3.0, float(s))
    count = torch.where(is_repeated, count.clamp(max=6), count)
    opacity = torch.where(happens(g, (n, s), 0.85), 1.0, uniform(g, (n, s), 0.2, 0.9))
    opacity[:, 0] = torch.where(is_part, 1.0, opacity[:, 0])
    is_grey = happens(g, (n, 1, 1), 0.4)
    color = colors(g, (n, s))
    scenes = Scenes(
        layout=layout,
        period=period,
        order=2.0 + choose(g, n, (1,) * 12),
        tolerance=log_uniform(g, n, 0.05, 2.0),
        is_print=happens(g, n, 0.25),
        ids=torch.randint(n_materials, (n, N_TEXTURES), generator=g, device=g.device),
        scale=log_uniform(g, (n, N_TEXTURES), 0.8, 1.25),
        turn=uniform(g, (n, N_TEXTURES), -0.3, 0.3),
        shapes=shapes,
        slot=torch.randint(N_TEXTURES, (n, s), generator=g, device=g.device),
        is_plain=happens(g, (n, s), 0.45),
        opacity=opacity,
        softness=log_uniform(g, (n, s), 0.35, 1.5),
        count=count.long(),
        color=torch.where(is_grey, color[..., :1], color),
        shade=normal(g, (n, s, 2)) * log_uniform(g, (n, s, 1), 0.01, 0.4),
    )
    return scenes.take(count.long().argsort(descending=True))


def _draw_shapes(g, n, size, layout, period):
    """Draw shapes that suit the layout of their scene."""
    s = MAX_SHAPES
    room = torch.where(layout == REPEATED, period / 2, size / 2)[:, None]
    room = torch.where((layout >= PART)[:, None], 0.32 * size, room)
    extent = log_uniform(g, (n, s), 0.03, 0.6) ** 1.2 * room
    extent = extent.clamp(min=1.5)
    is_line = happens(g, (n, s), 0.25)
    aspect = torch.where(
        is_line, log_uniform(g, (n, s), 3.0, 25.0), log_uniform(g, (n, s), 1.0, 2.0)
    )
    middle = uniform(g, (n, s, 2), -1.0, 1.0) * room[..., None]
    is_part = layout >= PART
    # The part itself comes first, large and in the middle.
    extent[:, 0] = torch.where(is_part, uniform(g, n, 0.22, 0.45) * size, extent[:, 0])
    aspect[:, 0] = torch.where(is_part, log_uniform(g, n, 1.0, 3.5), aspect[:, 0])
    middle[:, 0] = torch.where(is_part[:, None], 0.05 * middle[:, 0], middle[:, 0])
    power = torch.tensor([1.0, 2.0, 4.0, 12.0], device=g.device)
    spikes = torch.tensor([0.0, 3, 4, 5, 6, 8, 12, 20], device=g.device)
    kind = choose(g, (n, s), (0.1, 0.5, 0.15, 0.25))
    points = choose(g, (n, s), (0.6, *(0.4 / 7,) * 7))
    return Shapes(
        middle=middle,
        extent=extent,
        aspect=aspect,
        turn=uniform(g, (n, s), 0.0, math.pi),
        power=power[kind],
        points=spikes[points],
        depth=uniform(g, (n, s), 0.05, 0.4) * (points > 0),
        ring=torch.where(
            happens(g, (n, s), 0.15), log_uniform(g, (n, s), 0.04, 0.3), 0.0
        ),
    )


def draw_specimens(generator, scenes, textures, size):
    """Draw one specimen of each scene.

    Parameters
    ----------
    generator : torch.Generator
        Draws by how much it differs from the scene.
    scenes : Scenes
        n of them.
    textures : tensor of shape (n, N_TEXTURES, 3, size, size)
        What `draw_scene_textures` returns.
    size : int
        Pixels along both axes.

    Returns
    -------
    specimens : Specimens
    """
    shapes = scenes.shapes.vary(generator, scenes.tolerance)
    canvas = _Canvas(scenes, shapes, textures, size)
    counts = scenes.count.tolist()  # the largest come first
    for i in range(counts[0]):
        canvas.paint(i, sum(count > i for count in counts))
    return canvas.result()


def draw_pairs(generator, n, size, materials):
    """Draw two specimens of each of n scenes; a print has the same textures in both."""
    scenes = draw_scenes(generator, n, size, len(materials.kind))
    textures = draw_scene_textures(generator, scenes, materials, size)
    first = draw_specimens(generator, scenes, textures, size)
    others = draw_scene_textures(generator, scenes, materials, size)
    is_print = scenes.is_print[:, None, None, None, None]
    textures = torch.where(is_print, textures, others)
    return first, draw_specimens(generator, scenes, textures, size)


class _Canvas:
    """Images that shapes are painted on, one after the other."""

    def __init__(self, scenes, shapes, textures, size):
        self._scenes, self._shapes, self._textures = scenes, shapes, textures
        n, device = len(textures), textures.device
        y, x = (part - size / 2 for part in grid(size, device))
        self._plain = x.expand(n, size, size), y.expand(n, size, size)
        self._folded = _fold(scenes, *self._plain)
        self._is_part = (scenes.layout >= PART)[:, None, None]
        self._rows = torch.arange(n, device=device)
        is_plain = scenes.is_plain[:, -1]  # the last shape's filling is the ground's
        ground = scenes.color[:, -1, :, None, None]
        self._image = torch.where(is_plain[:, None, None, None], ground, textures[:, 0])
        material = torch.where(is_plain, PLAIN, scenes.ids[:, 0])[:, None, None]
        self._material = material.repeat(1, size, size)
        self._family = torch.full((n, size, size), N_SHAPES, device=device)
        self._boundary = torch.full((n, size, size), FAR, device=device)
        self._inside = None

    def paint(self, i, k):
        """Paint the i-th shapes of the first k scenes."""
        scenes, shape = self._scenes, self._shapes.take(i, k)
        away, u, v = distance_to(shape, *self._coordinates(i, k))
        cover = torch.sigmoid(-away / scenes.softness[:k, i, None, None])
        if i == 0:
            self._inside = ~self._is_part | (away < 0)
        else:  # details lie on their part
            cover = cover * self._inside[:k]
            away = torch.where(self._inside[:k], away, FAR)
        seen = (cover * scenes.opacity[:k, i, None, None])[:, None]
        self._image[:k] += seen * (self._fill(i, k, u, v) - self._image[:k])
        self._note(i, k, shape, away, cover > 0.5)

    def _coordinates(self, i, k):
        if i > 0:
            return [x[:k] for x in self._folded]
        pairs = zip(self._plain, self._folded, strict=True)
        # A part itself is not repeated.
        return [torch.where(self._is_part, *pair)[:k] for pair in pairs]

    def _fill(self, i, k, u, v):
        """Return what shapes are filled with, (k, 3, size, size)."""
        scenes = self._scenes
        texture = self._textures[self._rows[:k], scenes.slot[:k, i]]
        color = scenes.color[:k, i, :, None, None]
        fill = torch.where(scenes.is_plain[:k, i, None, None, None], color, texture)
        shade = scenes.shade[:k, i]
        light = shade[:, 0, None, None] * u + shade[:, 1, None, None] * v
        return fill + light.clamp(-0.4, 0.4)[:, None]

    def _note(self, i, k, shape, away, is_over):
        """Write down what is where."""
        scenes = self._scenes
        own = scenes.ids[self._rows[:k], scenes.slot[:k, i]]
        own = torch.where(scenes.is_plain[:k, i], PLAIN, own)[:, None, None]
        is_dense = is_over & (scenes.opacity[:k, i] > 0.5)[:, None, None]
        self._material[:k] = torch.where(is_dense, own, self._material[:k])
        family = shape.family()[:, None, None]
        self._family[:k] = torch.where(is_over, family, self._family[:k])
        edge = away.abs()
        nearer = torch.minimum(self._boundary[:k], edge)
        self._boundary[:k] = torch.where(is_over, edge, nearer)

    def result(self):
        """Return the images and what is known of them."""
        boundary = self._boundary.clamp(max=FAR)
        return Specimens(self._image, self._material, self._family, boundary)


def _fold(scenes, x, y):
    """Return coordinates in which shapes are repeated as their scenes say."""
    period = scenes.period[:, None, None]
    layout = scenes.layout[:, None, None]
    wrapped = [
        torch.remainder(part + period / 2, period) - period / 2 for part in (x, y)
    ]
    radius, angle = (x**2 + y**2).sqrt(), torch.atan2(y, x)
    wedge = 2 * math.pi / scenes.order[:, None, None]
    angle = torch.remainder(angle + wedge / 2, wedge) - wedge / 2
    turned = radius * angle.cos(), radius * angle.sin()
    return [
        torch.where(layout == REPEATED, wrap, torch.where(layout == ROUND, turn, plain))
        for wrap, turn, plain in zip(wrapped, turned, (x, y), strict=True)
    ]


def draw_scene_textures(generator, scenes, materials, size):
    """Draw the textures of scenes, (n, N_TEXTURES, 3, size, size)."""
    n = len(scenes.layout)
    chosen = materials.take(scenes.ids.flatten())
    scale, turn = scenes.scale.flatten(), scenes.turn.flatten()
    textures = draw_textures(generator, chosen, size, scale, turn)
    return textures.view(n, N_TEXTURES, 3, size, size)
