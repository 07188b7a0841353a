"""How much memory there is, and what to do where that of a GPU runs out."""

import os
from pathlib import Path

import torch

# Where Linux says what a group of processes, such as a container, may take.
_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory_size():
    """Return the bytes of memory that this process could take, or None if unknown."""
    sizes = [_physical_memory(), *map(_read_limit, _LIMITS)]
    return min((size for size in sizes if size is not None), default=None)


def _physical_memory():
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # as on Windows
        return None


def _read_limit(file):
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):  # there is none, or it is "max"
        return None


def is_out_of_memory(error):
    """Whether an exception says that memory, of whatever kind, has run out."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    # torch has no class of its own for that of the CPU.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def halve_without_memory(call, size):
    """Return ``call(size)``; where a GPU's memory runs out, that of half the size."""
    while True:
        try:
            return call(size)
        except torch.cuda.OutOfMemoryError:
            if size == 1:
                raise
        torch.cuda.empty_cache()
        size = size // 2
