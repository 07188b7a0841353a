"""Who may compute: one line after the other, each as often as it asks in turn."""

import threading
from collections import deque
from contextlib import contextmanager


class Turns:
    """Lets one block of code run at a time, in the order in which they have come.

    Each line asks again when its batch is done, and so behind all others that wait: one
    that has ten times as many images delays the next batch of another by one of its
    own.
    """

    def __init__(self):
        self._lock, self._waiting = threading.Lock(), deque()

    @contextmanager
    def take(self):
        """Wait for a turn, which ends with the block."""
        own = threading.Event()
        with self._lock:
            self._waiting.append(own)
            if self._waiting[0] is own:
                own.set()
        own.wait()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.popleft()
                if self._waiting:
                    self._waiting[0].set()
