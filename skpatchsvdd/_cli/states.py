"""Whether a file is the one that was seen before."""

import functools
import hashlib
import os
import stat

# Bytes of a state: two of a million differ, but for a chance of one in 30 million.
_N_STATE = 8


def find_state(file):
    """Return a number for a file's name, size and time of change, or None if gone.

    The name is that from the root on, links to folders followed: the same file has the
    same state from wherever it is looked at.
    """
    return _find_state(file, os.path.realpath)


def find_states(files):
    """Return the state of each of some files."""
    real_path = functools.cache(os.path.realpath)
    return {file: _find_state(file, real_path) for file in files}


def _find_state(file, real_path):
    folder, name = os.path.split(file)
    try:
        found = os.stat(file)
    except OSError:
        return None
    path = os.path.join(real_path(folder), name)
    size, changed = found.st_size, found.st_mtime_ns
    if not stat.S_ISREG(found.st_mode):  # a pipe, which changes when it is used
        size = changed = 0
    text = os.fsencode(f"{size}/{changed}/{path}")
    return int.from_bytes(hashlib.blake2b(text, digest_size=_N_STATE).digest(), "big")
