"""Arrays that are mapped from a file."""

import mmap
import os

import numpy as np


def map_file(stream):
    """Map an open file as bytes, for reading only, and remember when it was written."""
    mapped = np.memmap(stream, np.uint8, "r")
    mapped.status = os.fstat(stream.fileno())
    return mapped


def check_mapped(array, name):
    """Raise if the file of a mapped array is no longer what it was.

    Reading what has been cut off would end the process (SIGBUS). That the file was
    written to since is known of those of `map_file`. Arrays that are not mapped pass.
    """
    while isinstance(array.base, np.ndarray):
        array = array.base
    mapped = array.base
    if not isinstance(mapped, mmap.mmap):
        return
    start = getattr(array, "offset", 0)
    start -= start % mmap.ALLOCATIONGRANULARITY
    if mapped.size() < start + len(mapped):
        file = getattr(array, "filename", None) or "its file"
        raise OSError(
            f"{name} is mapped from {file}, which must have at least "
            f"{start + len(mapped):,} bytes and has {mapped.size():,} now: it has been "
            "cut off. Map it again when it is whole, and replace files by renaming, "
            "not by writing into them."
        )
    if _was_written(array):
        raise OSError(
            f"{name} is mapped from {array.filename}, which was written to since and "
            "no longer holds what it held. Load it again, and replace files by "
            "renaming, as save does, not by writing into them."
        )


def _was_written(mapped):
    before = getattr(mapped, "status", None)
    if before is None or not os.path.exists(mapped.filename):
        return False  # removed, or replaced by another: what is mapped stays
    now = os.stat(mapped.filename)
    is_same_file = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
    return is_same_file and now.st_mtime_ns != before.st_mtime_ns


def as_writable(array):
    """Return a view of an array that numpy lets be written to, for torch.

    torch warns of arrays that are for reading only, as those of a mapped file are, and
    a filter for that warning would be one for all threads. Nothing may write to it.
    """
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    def __init__(self, array):
        interface = array.__array_interface__
        address, _ = interface["data"]
        self.__array_interface__ = interface | {"data": (address, False)}
        self._array = array  # stays as long as the view does
