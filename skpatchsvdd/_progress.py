"""A bar that says how far a long call has come."""

import sys

_WIDTH = 30


class Progress:
    """Draws a bar in a terminal; elsewhere, as in a log file, only the end of it.

    Parameters
    ----------
    label : str
        What is done.
    total : int
        How many steps there are.
    is_shown : bool
        Whether to draw anything at all.
    """

    def __init__(self, label, total, is_shown):
        self._label = label
        self._total = total
        self._is_shown = is_shown
        self._n_cells = 0

    def __call__(self, done):
        """Say how many steps are done."""
        n_cells = _WIDTH * done // self._total
        if not self._is_shown or n_cells == self._n_cells:
            return
        self._n_cells = n_cells
        is_last, is_terminal = done >= self._total, sys.stdout.isatty()
        if not (is_last or is_terminal):
            return
        bar = "#" * n_cells + "." * (_WIDTH - n_cells)
        line = f"{self._label} {bar} {done:,} of {self._total:,}"
        start, end = "\r" if is_terminal else "", "\n" if is_last else ""
        print(start + line, end=end, flush=True)
