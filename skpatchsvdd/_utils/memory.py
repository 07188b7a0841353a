"""How much memory there is, and what to do where that of a GPU runs out."""

import functools
import os
from pathlib import Path

import torch

from skpatchsvdd._utils.threads import torch_threads

# Where Linux says what a group of processes, such as a container, may take.
_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
# How to need less of a GPU's memory, by the method that ran out of it.
_LESS_MEMORY = {
    "fit": "Pass a smaller Training(batch_size=...) if it was training, a smaller "
    "bank_size or image_size if it was after training, or device='cpu'.",
    "partial_fit": "set_params(bank_size=...) with fewer patches, or device='cpu'.",
}
_LESS_TO_SCORE = (
    "set_params(device='cpu') scores on the CPU; a smaller bank_size in fit makes a "
    "model that takes less."
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


def computes(method):
    """Decorate a method of an estimator that computes with torch.

    It uses `n_jobs` threads, and where a GPU's memory runs out it says what to do.
    """

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        try:
            with torch_threads(self.n_jobs):
                return method(self, *args, **kwargs)
        except torch.cuda.OutOfMemoryError as error:
            if isinstance(error.__cause__, torch.cuda.OutOfMemoryError):
                raise  # from a method that this one calls
            name = method.__name__
            advice = _LESS_MEMORY.get(name, _LESS_TO_SCORE)
            raise torch.cuda.OutOfMemoryError(
                f"the memory of the GPU ran out in {name}; the estimator is as it was. "
                f"{advice} ({error})"
            ) from error

    return call
