"""How many images are done, while somebody waits."""

import math
import time

from skpatchsvdd._cli.text import count, tell
from skpatchsvdd._utils import say_time_left

_SECONDS = 5.0  # between two lines


class Countdown:
    """Says how many images are done, and how long the others will take, to stderr."""

    def __init__(self, total):
        self._total = total
        self._start, self._told = time.monotonic(), -math.inf
        tell(f"inspecting {count(total, 'image')}")

    def __call__(self, n_done):
        """Say that so many are done, unless that was done just now, or all are."""
        now = time.monotonic()
        if n_done < self._total and now - self._told >= _SECONDS:
            self._told = now
            left = say_time_left(now - self._start, n_done, self._total)
            tell(f"{n_done:,} of {count(self._total, 'image')} done{left}")
