"""Ctrl-C that waits until what is at hand is done."""

import signal
import threading
from contextlib import contextmanager

from skpatchsvdd._cli.text import tell


@contextmanager
def finish_first():
    """Let a Ctrl-C in this block raise KeyboardInterrupt at its end, a second at once.

    In other threads than the main one, and where Ctrl-C does something else already,
    nothing is changed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        yield
        return
    asked = []

    def wait(*args):
        if asked:
            raise KeyboardInterrupt
        asked.append(args)
        tell("finishing the images at hand; Ctrl-C again ends it at once")

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt
