"""Procedural images: what the shipped weights are learnt on."""

from procedural.camera import draw_shots, photograph
from procedural.damage import draw_damage
from procedural.materials import N_MATERIALS, make_materials
from procedural.scenes import (
    FAR,
    draw_pairs,
    draw_scene_textures,
    draw_scenes,
    draw_specimens,
)
from procedural.shapes import N_SHAPES

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
