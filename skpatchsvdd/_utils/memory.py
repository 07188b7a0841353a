"""How much memory there is."""

import os
from pathlib import Path

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
