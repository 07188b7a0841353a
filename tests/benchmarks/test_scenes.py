import pytest
import torch
from procedural import (
    FAR,
    N_MATERIALS,
    N_SHAPES,
    draw_damage,
    draw_scene_textures,
    draw_scenes,
    draw_shots,
    draw_specimens,
    make_materials,
    photograph,
)
from procedural.fields import draw_cells, draw_lattice, draw_noise
from procedural.materials import PLAIN
from procedural.shapes import Shapes, distance_to
from settings import SEED

SIZE = 48


@pytest.fixture(scope="module")
def materials():
    return make_materials("cpu")


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(SEED)


def make_shape(**changes):
    one = {"extent": 10, "aspect": 1, "turn": 0, "power": 2, "points": 0}
    values = one | {"depth": 0, "ring": 0} | changes
    tensors = {name: torch.tensor([float(x)]) for name, x in values.items()}
    return Shapes(middle=torch.zeros(1, 2), **tensors)


def draw(generator, materials, n=6):
    scenes = draw_scenes(generator, n, SIZE, N_MATERIALS)
    textures = draw_scene_textures(generator, scenes, materials, SIZE)
    return scenes, textures, draw_specimens(generator, scenes, textures, SIZE)


def test_the_same_is_drawn_again(materials):
    for a, b in zip(materials, make_materials("cpu"), strict=True):
        assert torch.equal(a, b)
    generators = [torch.Generator().manual_seed(SEED) for _ in range(2)]
    assert torch.equal(*(draw(x, materials)[2].images for x in generators))


def test_fields_are_standardised(generator):
    one = torch.ones(3)
    fields = [
        draw_noise(generator, 64, 0 * one, 0.1 * one, 0.3 * one, 0 * one, one),
        draw_lattice(generator, 64, 8 * one, 0 * one, one, torch.ones(3, 4), 0 * one),
        draw_cells(generator, 64, 9 * one, 0.5 * one),
    ]
    for field in fields:
        torch.testing.assert_close(field.mean(dim=(1, 2)), 0 * one, atol=1e-4, rtol=0)
        torch.testing.assert_close(field.std(dim=(1, 2)), one, atol=1e-3, rtol=0)


def test_noise_lies_in_its_band(generator):
    one = torch.ones(1)
    field = draw_noise(generator, 64, 0 * one, 0.25 * one, 0.1 * one, 0 * one, one)
    power = torch.fft.rfft2(field[0]).abs() ** 2
    across, down = torch.fft.rfftfreq(64)[None], torch.fft.fftfreq(64)[:, None]
    frequency = (across**2 + down**2).sqrt()
    is_near = (frequency > 0.17) & (frequency < 0.37)  # four deviations
    assert power[is_near].sum() > 0.99 * power.sum()


def test_distances_to_a_disc_and_a_ring():
    x = torch.tensor([[[0.0, 5.0, 10.0, 20.0]]])
    away, *_ = distance_to(make_shape(), x, torch.zeros_like(x))
    torch.testing.assert_close(
        away[0, 0, 1:], torch.tensor([-5.0, 0, 10]), atol=0.01, rtol=0
    )
    away, *_ = distance_to(make_shape(ring=0.1), x, torch.zeros_like(x))
    assert away[0, 0, 2] < 0 < away[0, 0, 1]  # on the ring, and in its hole


def test_scenes_know_what_is_where(generator, materials):
    scenes, _, specimens = draw(generator, materials)
    assert torch.isfinite(specimens.images).all()
    for material, ids in zip(specimens.material, scenes.ids, strict=True):
        assert set(material.unique().tolist()) <= {*ids.tolist(), PLAIN}
    assert specimens.shape.min() >= 0
    assert specimens.shape.max() <= N_SHAPES
    assert specimens.boundary.min() >= 0
    assert specimens.boundary.max() <= FAR
    # Where the material changes, there is an edge.
    changes = specimens.material[:, 1:] != specimens.material[:, :-1]
    assert specimens.boundary[:, 1:][changes].median() < 3
    assert specimens.boundary.median() > specimens.boundary[:, 1:][changes].median()


def test_specimens_differ_and_scenes_differ_more(generator, materials):
    scenes, _, first = draw(generator, materials, n=12)
    textures = draw_scene_textures(generator, scenes, materials, SIZE)
    second = draw_specimens(generator, scenes, textures, SIZE)
    own = (first.images - second.images).abs().mean(dim=(1, 2, 3))
    other = (first.images - second.images.roll(1, dims=0)).abs().mean(dim=(1, 2, 3))
    assert (own > 0).all()
    assert own.median() < other.median()


def test_damage_is_where_its_mask_is(generator, materials):
    *_, specimens = draw(generator, materials)
    damaged, mask = draw_damage(generator, specimens.images)
    changed = (damaged - specimens.images).abs().amax(dim=1)
    assert mask.amax() > 0.5
    assert (changed[mask > 0.5] > 0.03).all()
    assert changed[mask < 0.01].median() < 0.03


def test_a_camera_sees_grey_where_it_has_no_colour(generator, materials):
    *_, specimens = draw(generator, materials)
    is_grey = torch.arange(6) % 2 == 0
    shots = draw_shots(generator, 6)
    images = photograph(generator, specimens.images, shots, is_grey)
    assert images.min() >= 0
    assert images.max() <= 1
    spread = images.amax(dim=1) - images.amin(dim=1)
    assert spread[is_grey].max() < 1e-5
    assert spread[~is_grey].max() > 0.01
