"""Which search a bank gets."""

import sys

from skpatchsvdd._bank.approximate import ApproximateIndex
from skpatchsvdd._bank.exact import ExactIndex

# Up to this many rows a CPU searches exactly, without pynndescent's compilation and
# index. From where on those would pay is an estimate.
EXACT_ROWS = 2**21


def make_index(bank, method, device, n_jobs, seed, log=None):
    """Index a bank of normal features, which the index takes over.

    "auto" is exact on a GPU and for banks of up to two million rows, and pynndescent
    for larger banks on a CPU, where it is built with `n_jobs` threads. Queries come
    from `device`. An exact index gives the same distances for any seed.
    ``log(message)`` is told of compilations.
    """
    if method == "auto":
        large = device.type == "cpu" and len(bank.rows) > EXACT_ROWS
        method = "pynndescent" if large else "exact"
    if method == "exact":
        return ExactIndex(bank, seed)
    if log is not None and "pynndescent" not in sys.modules:
        log("compiling pynndescent, about a minute once in a process")
    return ApproximateIndex(bank, n_jobs, seed)
