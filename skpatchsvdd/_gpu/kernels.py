"""Kernels in Triton: whether they run, and what is done where they do not."""

import functools
import importlib
import importlib.util
import math

import torch

from skpatchsvdd._utils import warn


@functools.cache
def runs_kernels(device):
    """Whether Triton works on a device, by a trial.

    Triton comes with torch for the GPUs that it is for. It needs a C compiler, which
    not every machine has, and a GPU that is not too old.
    """
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    try:
        trial = importlib.import_module("skpatchsvdd._gpu.trial_kernels")
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


class KernelWithFallback:
    """A function that runs as kernels where these are right, else by plain torch.

    Everything that uses kernels is made here. No compiler is trusted: kernels are
    compared with plain torch when they are made, on the device they are for. Where they
    differ or fail, then or in any later call, there is a warning, and plain torch is
    used from then on. Errors of a GPU whose memory runs out, and of a CUDA graph that
    is being recorded, are the caller's.

    ``make_fast()`` returns the function by kernels, or None where there are none, and
    ``make_plain()`` that by plain torch, which may take memory, and is called when it
    is needed. ``is_right(fast, plain)`` compares both. `name` is for the warning.
    """

    def __init__(self, name, make_fast, make_plain, is_right):
        self._name = name
        self._make_plain = make_plain
        self._fast = self._plain = None
        try:
            fast = make_fast()
            if fast is None or is_right(fast, make_plain()):
                self._fast = fast
            else:
                self._give_up("does not find what the plain one finds")
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # as where a GPU has less memory on its chip
            self._give_up(f"fails ({type(error).__name__}: {error})")

    @property
    def uses_kernels(self):
        """Whether kernels are used."""
        return self._fast is not None

    def __call__(self, *args, **kwargs):
        """Return what the function returns."""
        fast = self._fast
        if fast is not None:
            try:
                return fast(*args, **kwargs)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # as of a variant that is compiled only now
                if _is_recording():
                    raise  # it may be the recording that fails
                self._give_up(f"fails ({type(error).__name__}: {error})")
        if self._plain is None:
            self._plain = self._make_plain()
        return self._plain(*args, **kwargs)

    def _give_up(self, reason):
        self._fast = None
        warn(
            f"the fast {self._name} on this GPU {reason}. Continuing with a slower "
            "one. Another version of torch or triton may help.",
        )


def _is_recording():
    """Whether a CUDA graph is being recorded on the current stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def split_halves(x):
    """Return numbers as two of half precision, and a scale.

    The sum of both, times the scale, is the number. The largest are scaled to 2**11 or
    more, so that those that are small beside them are exact enough.
    """
    largest = max(float(x.abs().max()), 1e-30)
    scale = 2.0 ** (math.floor(math.log2(largest)) - 11)
    kept = (x / scale).half()
    return kept, (x / scale - kept).half(), scale
