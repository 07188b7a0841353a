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


class RetrySchedule:
    """When to try files again that have failed by no fault of their own."""

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


class FolderWatcher:
    """Yields, look by look, the images in a folder that are to be inspected.

    A file is waited for as long as its size or its time of change differ from one look
    to the next. What is yielded is to be used up before the next look. `is_inspected`
    says whether a state was inspected; whoever inspects the files keeps `retries`.
    """

    def __init__(self, folder, is_inspected, retries, say=print):
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"there is no folder {folder} to watch.")
        self._folder, self._is_inspected, self._retries = folder, is_inspected, retries
        self._inspected = set()  # states, of files that are there
        self._skipped = set()  # names of what cannot be looked at, told once
        say(f"watching {printable(folder)}; Ctrl-C ends it")

    def __iter__(self):
        before = {}
        while True:
            start = time.monotonic()
            found = find_states(without_drawn(self._list_files()))
            self._inspected.intersection_update(found.values())
            arrived = [
                file
                for file, state in found.items()
                if state == before.get(file) and self._is_due(state)
            ]
            taken = time.monotonic() - start
            # Many take a while: whether one has changed is asked again at its turn.
            yield (file for file in arrived if find_state(file) == found[file])
            before = found
            time.sleep(max(_WATCH_SECONDS, taken))  # looks take half of the time

    def _list_files(self):
        files, _, unreadable = find_files(self._folder)
        for name, reason in unreadable:
            if name not in self._skipped:
                tell(f"skipped: {reason}")
        self._skipped = {name for name, _ in unreadable}
        return files

    def _is_due(self, state):
        if state is None or state in self._inspected:
            return False
        if self._is_inspected(state):
            self._inspected.add(state)
            return False
        return self._retries.is_due(state)
