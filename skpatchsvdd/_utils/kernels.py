"""Whether kernels can be compiled and run on a GPU of this machine, by trying them."""

import functools
import importlib
import importlib.util
import math

import torch

from skpatchsvdd._utils.warnings import warn


@functools.cache
def runs_kernels(device):
    """Whether Triton works on a device, by a trial.

    Triton comes with torch for the GPUs that it is for. It needs a C compiler, which
    not every machine has, and a GPU that is not too old.
    """
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    try:
        trial = importlib.import_module("skpatchsvdd._utils.trial_kernels")
        x = torch.arange(16.0, device=device)
        trial.double[(1,)](x, N=16)
        return x.tolist() == [2 * i for i in range(16)]
    except Exception as error:  # whatever a compiler and its surroundings raise
        warn(
            "kernels cannot be compiled for this GPU, so that fitting and inspecting "
            f"take longer: {type(error).__name__}: {error}. It takes triton, which "
            "comes with torch, and a C compiler, gcc or clang.",
        )
        return False


def split_halves(x):
    """Return numbers as two of half precision, and a scale.

    The sum of both, times the scale, is the number. The largest are scaled to 2**11 or
    more, so that those that are small beside them are exact enough.
    """
    largest = max(float(x.abs().max()), 1e-30)
    scale = 2.0 ** (math.floor(math.log2(largest)) - 11)
    kept = (x / scale).half()
    return kept, (x / scale - kept).half(), scale


def try_kernels(what, make, is_right):
    """Make what uses kernels, if it does there what the plain way does.

    What is right is left to no compiler: everything that uses kernels comes from here,
    tried once on the device that it is for. Where it fails or errs, that is told, and
    the plain way is for the caller to take.

    Parameters
    ----------
    what : str
        What is done, for the warning.
    make : callable
        ``make()`` returns what uses kernels.
    is_right : callable
        ``is_right(made)`` uses it, and compares with the plain way.

    Returns
    -------
    made : object or None
        None if it is not to be used.
    """
    try:
        made = make()
        if is_right(made):
            return made
        reason = "does not find what the plain one finds"
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # as where a GPU has less memory on its chip
        reason = f"fails ({type(error).__name__}: {error})"
    warn(
        f"the fast {what} on this GPU {reason}. Continuing with a slower one. Another "
        "version of torch or triton may help.",
    )
    return None
