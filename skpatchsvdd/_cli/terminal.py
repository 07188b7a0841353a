"""What commands print and return, and Ctrl-C that waits.

Names of files may hold anything, and no name can forge a line.
"""

import signal
import sys
import threading
import unicodedata
from contextlib import contextmanager

# What commands return: all is well; something went wrong; an image is abnormal; none
# is, but not all could be inspected; the user has ended it.
OK, FAILED, ABNORMAL, UNREADABLE, INTERRUPTED = 0, 1, 3, 4, 130
# Files that a list names, at most.
_N_NAMED = 5


class ListedError(ValueError):
    """An error whose lines are a head, what is wrong, and a list, such as of files."""

    def __init__(self, head, items):
        super().__init__("\n  ".join([head, *items]))
        self.lines = [head, *items]


def printable(text):
    r"""Return text in which what could steer a terminal is written out, as ``\n``."""
    return "".join(
        x
        if x.isprintable() or unicodedata.category(x) == "Zs"
        else x.encode("unicode_escape").decode("ascii")
        for x in str(text)
    )


def say_p(p_value):
    """Return a p-value as text: of very small ones no more is known than that."""
    return f"{p_value:.1e}" if p_value >= 1e-6 else "< 1e-06"


def count(number, noun):
    """Return a number of things in words: "1 image", "1,200 images"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe_error(error):
    """Return what an error says, without the number that a system has for it."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return describe_cause(error)


def describe_cause(error):
    """Return what is wrong, without numbers of the system and names of files."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def tell(message):
    """Print a message about the work, as one line, to stderr."""
    print(printable(message), file=sys.stderr, flush=True)


def tell_error(error):
    """Print what has ended a command: one line, and one for each item of a list."""
    text = [describe_error(error)]
    head, *items = error.lines if isinstance(error, ListedError) else text
    tell(f"error: {head}")
    for item in items:
        tell(f"  {item}")


def print_files(head, files):
    """Print the first names of a list of files, if there are any."""
    if not files:
        return
    print(head)
    for file in files[:_N_NAMED]:
        print(f"  {printable(file)}")
    if len(files) > _N_NAMED:
        print(f"  and {len(files) - _N_NAMED} more")


@contextmanager
def finish_first():
    """Let a Ctrl-C in this block raise KeyboardInterrupt at its end, a second at once.

    Only in the main thread, and where Ctrl-C does nothing else.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        yield
        return
    presses = []

    def wait(*args):
        if presses:
            raise KeyboardInterrupt
        presses.append(args)
        tell("finishing the images at hand; Ctrl-C again ends it at once")

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if presses:
        raise KeyboardInterrupt
