"""Synthetic surfaces, and the defects that are drawn on them and on real images."""

from skpatchsvdd._synthetic.probes import (
    make_probes,
    rank_pixels,
    rate_ranks,
    rate_scores,
)
from skpatchsvdd._synthetic.surfaces import make_textures
