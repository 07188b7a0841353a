"""Procedural images: what is known beforehand is learnt from these formulas alone."""

from skpatchsvdd._formulas.camera import draw_shots, photograph
from skpatchsvdd._formulas.damage import draw_damage
from skpatchsvdd._formulas.materials import N_MATERIALS, make_materials
from skpatchsvdd._formulas.scenes import (
    FAR,
    draw_pairs,
    draw_scene_textures,
    draw_scenes,
    draw_specimens,
)
from skpatchsvdd._formulas.shapes import N_SHAPES

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
