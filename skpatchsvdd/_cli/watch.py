"""Watching a folder for images that arrive in it."""

import math
import time
from pathlib import Path

from skpatchsvdd._cli.files import find_state, find_states, without_drawn
from skpatchsvdd._cli.terminal import printable, tell
from skpatchsvdd._images import find_files

# How often a watched folder is looked at.
_WATCH_SECONDS = 1.0
# Seconds until a file that has failed by no fault of its own is tried again: at first,
# and at most; twice as long each time. At most, too, where the machine was at fault.
_FIRST_WAIT, _LONGEST_WAIT, _LONGEST_OF_MACHINE = 2, 600, 4


class Later:
    """Files that have failed by no fault of their own: when to try them again."""

    def __init__(self):
        self._waits = {}  # by state: when that is, and how long the wait was

    def is_due(self, state):
        """Whether the time of a file has come, as of those that never failed."""
        return time.monotonic() >= self._waits.get(state, (-math.inf, 0))[0]

    def put_off(self, outcome):
        """Leave a file for later, twice as late as the last time."""
        _, wait = self._waits.get(outcome.state, (0, _FIRST_WAIT / 2))
        longest = _LONGEST_OF_MACHINE if outcome.passes_soon else _LONGEST_WAIT
        wait = min(2 * wait, longest)
        self._waits[outcome.state] = time.monotonic() + wait, wait
        tell(f"tried again in {wait:.0f} s: {outcome.reason}")

    def forget(self, state):
        """Forget that a file has failed."""
        self._waits.pop(state, None)


def watch_folder(folder, is_due, say=print):
    """Yield, look by look, those images in a folder that are to be inspected.

    Those that are there at the start come first. A file is waited for as long as its
    size or its time of change differ from one look to the next. What is yielded is to
    be used up before the next look, and is empty where nothing has arrived. `is_due`
    says whether a file of a state is to be inspected; see `files.find_state`.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to watch.")
    say(f"watching {printable(folder)}; Ctrl-C ends it")
    before, reported = {}, set()
    while True:
        start = time.monotonic()
        files, _, unreadable = find_files(folder)
        for name, reason in unreadable:
            if name not in reported:
                tell(f"skipped: {reason}")
        reported = {name for name, _ in unreadable}
        found = find_states(without_drawn(files))
        arrived = {
            x: state
            for x, state in found.items()
            if state is not None and state == before.get(x) and is_due(state)
        }
        taken = time.monotonic() - start
        # Many take a while: whether one has changed is asked again at its turn.
        yield (x for x, state in arrived.items() if find_state(x) == state)
        before = found
        time.sleep(max(_WATCH_SECONDS, taken))  # no more than half of the time to look
