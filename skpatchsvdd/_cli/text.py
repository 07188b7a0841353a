"""What the command line prints: a name may hold anything, a line must stay one."""

import sys
import unicodedata


class ListedError(ValueError):
    """An error whose lines are a head, what is wrong, and a list, such as of files."""

    def __init__(self, head, items):
        super().__init__("\n  ".join([head, *items]))
        self.lines = [head, *items]


def printable(text):
    r"""Return text in which all that could steer a terminal is written out.

    A newline in the name of a file becomes ``\n``, so that no name looks like a line
    of its own; the bytes of a name that is no text become ``\udcXX``.
    """
    return "".join(map(_write_out, str(text)))


def count(number, noun):
    """Return a number of things in words: "1 image", "1,200 images"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe_error(error):
    """Return what an error says, without the number that a system has for it."""
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename is not None else ""
        return f"{named}{error.strerror}"
    return str(error) or type(error).__name__


def _write_out(character):
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")


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
