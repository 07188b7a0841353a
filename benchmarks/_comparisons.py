"""What the comparison is trained on: specimens of a scene, of which one is damaged."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from procedural import (
    draw_damage,
    draw_scene_textures,
    draw_scenes,
    draw_shots,
    draw_specimens,
    photograph,
)
from procedural.camera import Shots
from procedural.draws import choose, happens, log_uniform, normal, uniform
from procedural.fields import grid
from procedural.scenes import PART, REPEATED, ROUND

# Pixels of a scene and of a view of it, and specimens of a scene.
SCENE, VIEW, N_SPECIMENS = 208, 160, 6
# Shapes of the damaged specimen that are altered, at most, and ways to alter one: it is
# missing, moved, turned, larger or smaller, or filled otherwise.
_N_ALTERED, _ALTERATIONS = 3, 5
# Values that differ by more are seen.
_SEEN = 0.06
# Marks of a kind that all specimens of a scene may have, at most.
_N_MARKS = 6
# How far specimens lie apart at most, as a fraction, in views and in radians; and how
# much one that is turned out of the plane is narrower than another.
_ENLARGE, _SHIFT, _TURN, _NARROW = 0.1, 0.12, 0.25, 0.2
# How often damage is drawn at its own size, twice that and four times that, and how
# often a region is damaged all over; else there is none but what is altered.
_SIZES = {1: 0.42, 2: 0.18, 4: 0.04}
_REGIONS = 0.15
# Ways to damage a region: it shows another scene, is of another light or contrast,
# blurred, turned or flat.
_REGION_WAYS = 6


class Comparisons(NamedTuple):
    """Normal images of scenes, and one more of each.

    Attributes
    ----------
    query : tensor of shape (n, 3, VIEW, VIEW)
        The images that are compared, 0..1.
    normal : tensor of shape (k, n, 3, VIEW, VIEW)
        Those they are compared with.
    mask : tensor of shape (n, VIEW, VIEW)
        How much of each pixel of the query is damaged, 0..1.
    """

    query: torch.Tensor
    normal: torch.Tensor
    mask: torch.Tensor


@torch.no_grad()
def draw_sets(generator, n, materials):
    """Draw specimens of n scenes, (n, N_SPECIMENS + 1, 3, SCENE, SCENE), in bytes.

    The last one is the first one with some shapes altered, and the same otherwise. In
    some scenes a few shapes are in no two specimens the same, as handwriting is, and in
    some the light of all shapes, as that of faces is which turn to it.
    """
    g = generator
    scenes = draw_scenes(g, n, SCENE, len(materials.kind))
    textures = draw_scene_textures(g, scenes, materials, SCENE)
    is_print = scenes.is_print[:, None, None, None, None]
    varying = _choose_shapes(g, scenes, 2) & happens(g, (n, 1), 0.2)
    lit = log_uniform(g, (n, 1, 1), 0.02, 0.25) * happens(g, (n, 1, 1), 0.25)
    images = []
    for i in range(N_SPECIMENS):
        if i > 0:
            others = draw_scene_textures(g, scenes, materials, SCENE)
            textures = torch.where(is_print, textures, others)
        own = _alter(g, scenes, varying)
        light = lit * normal(g, (*own.opacity.shape, 1))
        own = own._replace(color=own.color + light)
        altered = _alter(g, own, _choose_shapes(g, scenes, _N_ALTERED))
        state = g.get_state()
        images.append(draw_specimens(g, own, textures, SCENE).images)
        if i == 0:
            g.set_state(state)
            twin = draw_specimens(g, altered, textures, SCENE).images
            twin = _keep_around(g, images[0], twin, scenes)
    stacked = torch.stack([*images, twin], dim=1)
    return (255 * stacked.clamp_(0, 1)).round_().byte()


def _choose_shapes(g, scenes, n_chosen):
    """Choose some shapes of each scene, (n, n_shapes), never the part itself."""
    n, n_shapes = scenes.opacity.shape
    first = (scenes.layout >= PART).long()[:, None]
    room = (scenes.count[:, None] - first).clamp(min=1)
    numbers = torch.arange(n_shapes, device=g.device)
    chosen = torch.zeros(n, n_shapes, dtype=torch.bool, device=g.device)
    for _ in range(n_chosen):
        number = first + (uniform(g, (n, 1)) * room).long()
        chosen |= (numbers == number) & happens(g, (n, 1), 0.6)
    return chosen


def _alter(g, scenes, chosen):
    """Return scenes whose chosen shapes are altered, each in one way."""
    shapes, size = scenes.shapes, scenes.opacity.shape
    way = choose(g, size, (1,) * _ALTERATIONS)
    step = log_uniform(g, (*size, 2), 3.0, 30.0) * normal(g, (*size, 2)).sign()
    turn = uniform(g, size, 0.2, 1.3) * normal(g, size).sign()
    factor = torch.where(
        happens(g, size, 0.5), uniform(g, size, 0.4, 0.8), uniform(g, size, 1.3, 2.0)
    )

    def pick(number, new, old):
        is_so = (chosen & (way == number)).view(*size, *[1] * (old.dim() - 2))
        return torch.where(is_so, new, old)

    return scenes._replace(
        opacity=pick(0, torch.zeros_like(scenes.opacity), scenes.opacity),
        shapes=shapes._replace(
            middle=pick(1, shapes.middle + step, shapes.middle),
            turn=pick(2, shapes.turn + turn, shapes.turn),
            extent=pick(3, shapes.extent * factor, shapes.extent),
        ),
        slot=pick(4, (scenes.slot + 1) % scenes.ids.shape[1], scenes.slot),
        color=pick(4, 1 - scenes.color, scenes.color),
    )


def _keep_around(g, images, twins, scenes):
    """Return twins that differ at one place alone where shapes are repeated."""
    n = len(images)
    y, x = grid(SCENE, g.device)
    middle = uniform(g, (2, n, 1, 1), 0.25 * SCENE, 0.75 * SCENE)
    radius = uniform(g, (n, 1, 1), 0.1 * SCENE, 0.3 * SCENE)
    away = ((x - middle[0]) ** 2 + (y - middle[1]) ** 2).sqrt()
    layout = scenes.layout[:, None, None]
    is_near = (away < radius) | ((layout != REPEATED) & (layout != ROUND))
    return torch.where(is_near[:, None], twins, images)


@torch.no_grad()
def draw_comparisons(generator, sets, n_normal):
    """Draw views of sets of specimens, and damage to the first one.

    Parameters
    ----------
    generator : torch.Generator
        On the device of the sets.
    sets : tensor of shape (n, N_SPECIMENS + 1, 3, SCENE, SCENE)
        What `draw_sets` returns.
    n_normal : int
        Specimens that the first one is compared with.

    Returns
    -------
    comparisons : Comparisons
    """
    g, n = generator, len(sets)
    others = 1 + torch.randperm(N_SPECIMENS - 1, generator=g, device=g.device)
    others = others[:n_normal].tolist()
    # In a third of the scenes all specimens lie alike.
    apart = torch.where(happens(g, n, 0.3), 0.0, uniform(g, n) ** 2)
    place = uniform(g, (n, 2), -1.0, 1.0) * (1 - VIEW / SCENE)
    narrow = apart[:, None] * uniform(g, (n, 2)) * happens(g, (n, 1), 0.5)
    frames = [_draw_frame(g, place, apart, narrow) for _ in range(n_normal + 1)]
    picked = [_to_float(sets[:, i]) for i in (0, *others)]
    views = [_look(x, frame) for x, frame in zip(picked, frames, strict=True)]
    views = _mark(g, views)
    twin = _look(_to_float(sets[:, -1]), frames[0]) - _look(picked[0], frames[0])
    is_altered = happens(g, (n, 1, 1, 1), 0.35)
    mask = (twin.abs().amax(1) > _SEEN).float() * is_altered[:, 0]
    views[0], damage = _damage(g, views[0] + twin * is_altered)
    shots, is_grey = _draw_shots(g, n, n_normal + 1), happens(g, n, 1 / 3)
    images = [photograph(g, x, s, is_grey) for x, s in zip(views, shots, strict=True)]
    query, *normal_images = [x.mul(255).round().div(255) for x in images]
    return Comparisons(query, torch.stack(normal_images), torch.maximum(mask, damage))


def _to_float(images):
    return images.float().div_(255)


def _draw_frame(g, place, apart, narrow):
    """Return how a specimen is seen, as matrices (n, 2, 3)."""
    n = len(place)
    turn = _TURN * apart * uniform(g, n, -1.0, 1.0)
    scale = (1 + _ENLARGE * apart * uniform(g, n, -1.0, 1.0)) * VIEW / SCENE
    wide, high = (1 + _NARROW * narrow * uniform(g, (n, 2), -1.0, 1.0)).unbind(1)
    moved = place + _SHIFT * apart[:, None] * uniform(g, (n, 2), -1.0, 1.0)
    cos, sin = scale * turn.cos(), scale * turn.sin()
    rows = [
        torch.stack([wide * cos, -high * sin], 1),
        torch.stack([wide * sin, high * cos], 1),
    ]
    return torch.cat([torch.stack(rows, 1), moved[..., None]], dim=2)


def _look(images, frame):
    at = F.affine_grid(frame, (len(images), 3, VIEW, VIEW), align_corners=False)
    return F.grid_sample(images, at, padding_mode="reflection", align_corners=False)


def _mark(g, views):
    """Draw marks of one kind a scene, such as dust, on all specimens of some scenes."""
    n = len(views[0])
    shape = (n, 1, 1)
    is_marked = happens(g, shape, 0.3)
    extent = log_uniform(g, shape, 1.5, 20.0)
    aspect = torch.where(happens(g, shape, 0.5), 1.3, log_uniform(g, shape, 2.0, 10.0))
    light = normal(g, (n, 1, 1, 1)).sign() * log_uniform(g, (n, 1, 1, 1), 0.05, 0.5)
    share = uniform(g, shape)
    y, x = grid(VIEW, g.device)
    marked = []
    for view in views:
        for _ in range(_N_MARKS):
            middle = uniform(g, (2, *shape), 0.0, float(VIEW))
            turn = uniform(g, shape, 0.0, math.pi)
            length = extent * log_uniform(g, shape, 0.7, 1.4)
            right, down = x - middle[0], y - middle[1]
            u = (turn.cos() * right + turn.sin() * down) / length
            v = (turn.cos() * down - turn.sin() * right) / (length / aspect)
            width = (length / aspect).clamp(0.8, 6.0)
            cover = torch.sigmoid(2 * width * (1 - (u**2 + v**2).sqrt()))
            cover = cover * (is_marked & happens(g, shape, share))
            view = view + light * cover[:, None]
        marked.append(view)
    return marked


def _damage(g, views):
    """Return damaged views, and where; some are not damaged."""
    n = len(views)
    shares = (*_SIZES.values(), _REGIONS)
    way = choose(g, n, (*shares, 1 - sum(shares)))
    is_region = way == len(_SIZES)
    damaged, mask = _damage_regions(g, views)
    damaged = torch.where(is_region[:, None, None, None], damaged, views)
    mask = mask * is_region[:, None, None]
    for i, factor in enumerate(_SIZES):
        small = F.avg_pool2d(views, factor) if factor > 1 else views
        changed, cover = draw_damage(g, small)
        change = changed - small
        if factor > 1:  # large ones are often faint
            change, cover = (
                F.interpolate(x, scale_factor=factor, mode="bilinear")
                for x in (change, cover[:, None])
            )
            cover = cover[:, 0]
            strength = torch.where(happens(g, n, 0.5), 1.0, uniform(g, n, 0.15, 0.65))
            change = change * strength[:, None, None, None]
            cover = cover * (change.abs().amax(1) > 0.03)
        is_so = way == i
        damaged = torch.where(is_so[:, None, None, None], views + change, damaged)
        mask = torch.where(is_so[:, None, None], cover, mask)
    return damaged, mask


def _damage_regions(g, views):
    """Return views of which a region is damaged all over, and where."""
    n = len(views)
    cover = _draw_region(g, n)
    one = (n, 1, 1, 1)
    middle = views.mean(dim=(2, 3), keepdim=True)
    light = log_uniform(g, one, 0.05, 0.4) * normal(g, one).sign()
    contrast = torch.where(
        happens(g, one, 0.5), uniform(g, one, 0.0, 0.6), uniform(g, one, 1.6, 3.0)
    )
    fillings = (
        views.roll(1, dims=0),
        views + light * (1 + 0.3 * normal(g, (n, 3, 1, 1))),
        middle + contrast * (views - middle),
        F.avg_pool2d(views, 9, 1, 4, count_include_pad=False),
        views.transpose(2, 3),
        uniform(g, (n, 3, 1, 1)).expand_as(views),
    )
    chosen = choose(g, one, (1,) * _REGION_WAYS)
    filling = sum(torch.where(chosen == i, x, 0.0) for i, x in enumerate(fillings))
    is_faint = happens(g, one, 0.4)
    strength = torch.where(is_faint, uniform(g, one, 0.25, 1.0), 1.0)
    change = cover[:, None] * strength * (filling - views)
    # Where hardly anything around differs, nothing is to be seen.
    seen = F.avg_pool2d(change.abs().amax(dim=1)[:, None], 9, 1, 4)[:, 0] > 0.02
    return views + change, cover * seen


def _draw_region(g, n):
    """Draw large regions with edges of any course, (n, VIEW, VIEW)."""
    y, x = (k / VIEW - 0.5 for k in grid(VIEW, g.device))
    one = (n, 1, 1)
    middle, turn = uniform(g, (2, *one), -0.5, 0.5), uniform(g, one, 0.0, 2 * math.pi)
    aside = turn.cos() * x + turn.sin() * y
    away = ((x - middle[0]) ** 2 + (y - middle[1]) ** 2).sqrt()
    uneven = F.interpolate(
        normal(g, (n, 1, 6, 6)), (VIEW, VIEW), mode="bicubic", align_corners=False
    )[:, 0]
    field = torch.where(happens(g, one, 0.3), aside, -away)
    field = field + log_uniform(g, one, 0.01, 0.3) * uneven
    share = log_uniform(g, n, 0.04, 0.5)
    ranked = field.flatten(1).sort(dim=1).values
    place = ((1 - share) * (VIEW**2 - 1)).long()[:, None]
    edge = ranked.gather(1, place)[..., None]
    return torch.sigmoid(VIEW * (field - edge) / log_uniform(g, one, 0.4, 3.0))


def _draw_shots(g, n, k):
    """Draw settings of a camera for k specimens.

    The same for all, or another for each, or another for the first alone: light that
    no normal image has seen is no damage.
    """
    same, way = draw_shots(g, n), choose(g, n, (0.55, 0.25, 0.2))
    part = uniform(g, n, 0.2, 1.0)
    shots = []
    for i in range(k):
        own = draw_shots(g, n)
        share = (way == 1) + (way == 2) * part * (i == 0)
        pairs = zip(same, own, strict=True)
        shots.append(Shots(*(a + _fit(share, a) * (b - a) for a, b in pairs)))
    return shots


def _fit(values, like):
    """Return one value an image so that it can be multiplied by a tensor."""
    return values.view(-1, *[1] * (like.dim() - 1))
