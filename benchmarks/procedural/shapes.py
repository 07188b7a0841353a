"""Shapes: ellipses, boxes, stars, rings and lines, of one formula."""

from typing import NamedTuple

import torch

from procedural.draws import normal

_TINY = 1e-4
# Families of shapes: by their roundness, whether they have points, and are rings.
_N_ROUND, _N_POINTS = 4, 3
N_SHAPES = _N_ROUND * _N_POINTS * 2


class Shapes(NamedTuple):
    """Parameters of shapes, tensors of shape (n, n_shapes, ...) or (n, ...).

    Attributes
    ----------
    middle : tensor of shape (..., 2)
        Column and row, from the middle of the image.
    extent, aspect, turn : tensors
        Half of its length in pixels, length over width, and direction.
    power : tensor
        1 is a diamond, 2 an ellipse, and the larger the more it is a box.
    points, depth : tensors
        How many points a star has, and how deep they are cut.
    ring : tensor
        Half the width of a ring, as a fraction of the extent; 0 fills the shape.
    """

    middle: torch.Tensor
    extent: torch.Tensor
    aspect: torch.Tensor
    turn: torch.Tensor
    power: torch.Tensor
    points: torch.Tensor
    depth: torch.Tensor
    ring: torch.Tensor

    def take(self, i, k):
        """Return the i-th shapes of the first k scenes."""
        return Shapes(*(x[:k, i] for x in self))

    def vary(self, generator, tolerance):
        """Return the shapes moved, turned and enlarged by a few pixels."""
        pixels = tolerance[:, None] * normal(generator, self.extent.shape)
        moves = tolerance[:, None, None] * normal(generator, self.middle.shape)
        turns = 0.03 * tolerance[:, None] * normal(generator, self.turn.shape)
        return self._replace(
            middle=self.middle + moves,
            extent=(self.extent + 0.4 * pixels).clamp(min=1.0),
            turn=self.turn + turns,
        )

    def family(self):
        """Return the number of the family that each shape is of."""
        roundness = (self.power > 1.5).long() + (self.power > 3) + (self.power > 8)
        pointed = (self.points > 0).long() + (self.points > 5)
        return (roundness * _N_POINTS + pointed) * 2 + (self.ring > 0)


def distance_to(shape, x, y):
    """Return the distance of pixels to the edge of a shape, below 0 inside.

    Parameters
    ----------
    shape : Shapes
        One for each image, of shape (n, ...).
    x, y : tensors of shape (n, height, width)
        Columns and rows of the pixels, from the middle of the image.

    Returns
    -------
    away, u, v : tensors of shape (n, height, width)
        The distance, about, and where the pixel lies in the shape's own frame, about
        -1 to 1.
    """
    x = x - shape.middle[:, 0, None, None]
    y = y - shape.middle[:, 1, None, None]
    cos, sin = shape.turn.cos()[:, None, None], shape.turn.sin()[:, None, None]
    extent = shape.extent[:, None, None]
    width = (shape.extent / shape.aspect).clamp(min=0.7)[:, None, None]
    u = (cos * x + sin * y) / extent
    v = (cos * y - sin * x) / width
    power = shape.power[:, None, None]
    radius = ((u.abs() + _TINY) ** power + (v.abs() + _TINY) ** power) ** (1 / power)
    star = torch.cos(shape.points[:, None, None] * torch.atan2(v, u))
    radius = radius / (1 + shape.depth[:, None, None] * star)
    ring = shape.ring[:, None, None]
    radius = torch.where(ring > 0, (radius - 1).abs() / (ring + _TINY), radius)
    # Pixels that one unit of the radius takes, across the shape's narrow side.
    unit = torch.where(ring > 0, width * ring, width)
    return (radius - 1) * unit, u.clamp(-2, 2), v.clamp(-2, 2)
