"""What pretraining sees: two specimens of a scene, and damage."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from procedural import (
    FAR,
    draw_damage,
    draw_pairs,
    draw_shots,
    photograph,
)

# Pixels of a scene and of a view of it.
SCENE, VIEW = 224, 128
# How far views of a scene are turned, enlarged and moved against each other, in
# radians, as a fraction and in pixels: more, and damage is seen less.
_TURN, _ENLARGE, _SHIFT = 0.12, 0.1, 19.0
_N_POINTS, _N_DAMAGED = 40, 16
# Views of each scene, one after another: drawing a scene takes longest.
N_EACH = 4


class Views(NamedTuple):
    """Three views of each of n scenes, and p points seen in all of them.

    Attributes
    ----------
    images : tensor of shape (3, n, 3, VIEW, VIEW)
        A specimen, another one, and that one damaged.
    points : tensor of shape (2, n, p, 2)
        Columns and rows of points, in the first view and in both others, -1 to 1.
    is_valid, is_damaged : tensors of bool of shape (n, p)
        Whether a point lies in all views, and is damaged in the third.
    material, shape : tensors of int of shape (n, p)
    boundary : tensor of shape (n, p)
        What is known of the points.
    """

    images: torch.Tensor
    points: torch.Tensor
    is_valid: torch.Tensor
    is_damaged: torch.Tensor
    material: torch.Tensor
    shape: torch.Tensor
    boundary: torch.Tensor


def draw_bytes(generator, n, materials):
    """Return all views of n scenes as they come from files: eight bits a value."""
    drawn = draw_views(generator, n, materials)
    return [x._replace(images=(255 * x.images).round_().byte()) for x in drawn]


@torch.no_grad()
def draw_views(generator, n, materials):
    """Draw n scenes, and yield views of them and points, `N_EACH` times."""
    first, second = draw_pairs(generator, n, SCENE, materials)
    for _ in range(N_EACH):
        yield _draw_pair(generator, first, second)


def _draw_pair(g, first, second):
    n = len(first.images)
    middle = _uniform(g, (n, 2), (SCENE - VIEW) / 2)
    moved = (middle + _uniform(g, (n, 2), _SHIFT)).clamp(-SCENE / 4, SCENE / 4)
    frames = [_draw_frames(g, m) for m in (middle, moved)]
    views = [_look(x.images, f) for x, f in zip((first, second), frames, strict=True)]
    damaged, mask = draw_damage(g, views[1])
    is_grey = torch.rand(n, generator=g, device=g.device) < 1 / 3
    shots = [draw_shots(g, n) for _ in range(2)]
    images = [
        photograph(g, views[0], shots[0], is_grey),
        photograph(g, views[1], shots[1], is_grey),
        photograph(g, damaged, shots[1], is_grey),
    ]
    return Views(torch.stack(images), *_draw_points(g, n, frames, mask, first))


def _draw_frames(g, middle):
    """Return how views lie in their scenes: matrices (n, 2, 2) and middles (n, 2)."""
    n = len(middle)
    turn, scale = _uniform(g, n, _TURN), 1 + _uniform(g, n, _ENLARGE)
    cos, sin = scale * turn.cos(), scale * turn.sin()
    rows = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    return rows * (VIEW / SCENE), middle / (SCENE / 2)


def _look(images, frame):
    matrix, middle = frame
    theta = torch.cat([matrix, middle[:, :, None]], dim=2)
    grid = F.affine_grid(theta, (len(images), 3, VIEW, VIEW), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _draw_points(g, n, frames, mask, specimens):
    """Draw points of the second view, many of them damaged, and find them again."""
    even = _uniform(g, (n, _N_POINTS - _N_DAMAGED, 2), 0.92)
    weights = F.avg_pool2d(mask[:, None], 4).flatten(1) + 1e-6
    cells = torch.multinomial(weights, _N_DAMAGED, replacement=True, generator=g)
    side = VIEW // 4
    where = torch.stack([cells % side, cells // side], 2) + 0.5
    where = where + _uniform(g, where.shape, 0.5)
    points = torch.cat([even, 2 * where / side - 1], dim=1)  # of the second view
    (first, middle), (second, moved) = frames
    scene = points @ second.transpose(1, 2) + moved[:, None]
    seen = (scene - middle[:, None]) @ torch.linalg.inv(first).transpose(1, 2)
    is_valid = (seen.abs().amax(2) < 0.95) & (points.abs().amax(2) < 0.95)
    is_valid &= scene.abs().amax(2) < 0.98
    is_damaged = sample(mask[:, None], points)[..., 0] > 0.5
    pixels = ((scene + 1) * SCENE / 2).long().clamp(0, SCENE - 1)
    rows = torch.arange(n, device=g.device)[:, None]
    labels = [
        x[rows, pixels[..., 1], pixels[..., 0]]
        for x in (specimens.material, specimens.shape, specimens.boundary)
    ]
    return torch.stack([seen, points]), is_valid, is_damaged, *labels


def sample(maps, points):
    """Return what maps, (n, c, h, w), have at points, (n, p, 2), as (n, p, c)."""
    found = F.grid_sample(
        maps, points[:, None], padding_mode="border", align_corners=False
    )
    return found[:, :, 0].transpose(1, 2)


def look_alike(views, reach):
    """Return which pairs of points of a scene cannot be told apart, (n, p, p).

    Of the same material and family of shapes, and as far from the nearest edge, up to
    what a feature can see.
    """
    edge = views.boundary.clamp(max=min(reach, FAR))
    alike = (edge[:, :, None] - edge[:, None]).abs() < 4.0
    for label in (views.material, views.shape):
        alike &= label[:, :, None] == label[:, None]
    return alike


def _uniform(g, shape, bound):
    return bound * (2 * torch.rand(shape, generator=g, device=g.device) - 1)
