"""Which search a bank gets."""

import sys

from skpatchsvdd._bank.approximate import ApproximateIndex
from skpatchsvdd._bank.exact import ExactIndex

# Up to this many rows a CPU searches exactly, without pynndescent's compilation and
# index. From where on those would pay is an estimate.
EXACT_ROWS = 2**21


def make_index(bank, method, device, n_jobs, seed, log=None):
    """Index a bank of normal features.

    Parameters
    ----------
    bank : Bank
        Features of normal patches and the images they are from. The index takes it
        over.
    method : {"auto", "exact", "pynndescent"}
        "auto" is exact on a GPU and for banks of up to two million rows, and
        pynndescent for larger banks on a CPU.
    device : torch.device
        Where queries will come from.
    n_jobs : int or None
        Threads for building an approximate index.
    seed : int
        Seed of an index. An exact one gives the same distances for any.
    log : callable or None
        ``log(message)`` is told of compilations.

    Returns
    -------
    index : ExactIndex or ApproximateIndex
        ``index.query(features, left_out)`` gives distances.
    """
    if method == "auto":
        large = device.type == "cpu" and len(bank.rows) > EXACT_ROWS
        method = "pynndescent" if large else "exact"
    if method == "exact":
        return ExactIndex(bank, seed)
    if log is not None and "pynndescent" not in sys.modules:
        log("compiling pynndescent, about a minute once in a process")
    return ApproximateIndex(bank, n_jobs, seed)
