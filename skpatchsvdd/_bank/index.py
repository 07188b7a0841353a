"""Which search a bank gets."""

import sys

from skpatchsvdd._bank.approximate import ApproximateIndex
from skpatchsvdd._bank.exact import ExactIndex


def make_index(bank, method, device, n_jobs, seed, log=None):
    """Index a bank of normal features, which the index takes over.

    "auto" is exact. "pynndescent" is built with `n_jobs` threads where queries come
    from a CPU; a GPU does without. Both give the same distances, for any seed.
    ``log(message)`` is told of compilations.
    """
    if method != "pynndescent" or device.type != "cpu":
        return ExactIndex(bank, seed)
    if log is not None and "pynndescent" not in sys.modules:
        log("compiling pynndescent, about a minute once in a process")
    return ApproximateIndex(bank, n_jobs, seed)
