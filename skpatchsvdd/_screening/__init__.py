"""Training images that look defective: found, although others look like them."""

from skpatchsvdd._screening.screen import find_defective
from skpatchsvdd._screening.suspects import (
    MIN_IMAGES,
    STRANGE,
    Suspects,
    count_set_aside,
    list_suspects,
    measure_plausibility,
    warn_of_newcomers,
    warn_of_suspects,
)
