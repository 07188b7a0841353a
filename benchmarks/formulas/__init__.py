"""Procedural images: what is known beforehand is learnt from these formulas alone."""

from formulas.camera import draw_shots, photograph
from formulas.damage import draw_damage
from formulas.materials import N_MATERIALS, make_materials
from formulas.scenes import (
    FAR,
    draw_pairs,
    draw_scene_textures,
    draw_scenes,
    draw_specimens,
)
from formulas.shapes import N_SHAPES

__all__ = [
    "FAR",
    "N_MATERIALS",
    "N_SHAPES",
    "draw_damage",
    "draw_pairs",
    "draw_scene_textures",
    "draw_scenes",
    "draw_shots",
    "draw_specimens",
    "make_materials",
    "photograph",
]
