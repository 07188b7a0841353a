"""Training images that look defective: found, although others look like them."""

from skpatchsvdd._screening.screen import find_candidates
from skpatchsvdd._screening.suspects import (
    MIN_IMAGES,
    STRANGE,
    Suspects,
    count_set_aside,
    list_suspects,
    measure_plausibility,
    readmit,
    warn_of_newcomers,
    warn_of_suspects,
)
