"""Number formats: exact convolutions, and bf16 where training is faster with it."""

import functools
import os
from contextlib import nullcontext

import torch

from skpatchsvdd._utils.threads import make_lock

# Limits of what oneDNN may use of a processor, under either name, and limits that are
# none.
_ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_NO_LIMITS = ("", "ALL", "DEFAULT")


def exact_convolutions(device=None):
    """Context in which convolutions are plain float32 and repeat to the last bit.

    cuDNN would otherwise round inputs to TF32, and features of one image would differ
    by a thousandth between a GPU and a CPU. Its settings are those of the process: they
    are left alone if `device` is a CPU.
    """
    is_cpu = device is not None and device.type == "cpu"
    return nullcontext() if is_cpu else _EXACT_CUDNN


class _SharedContext:
    """A context of the process: the first thread enters it, the last one leaves it.

    If each thread put back what it had found, one could put back what another had set.
    """

    def __init__(self, make):
        self._make = make
        self._lock = make_lock()
        self._n_inside = 0
        self._context = None

    def __enter__(self):
        with self._lock:
            if self._n_inside == 0:
                self._context = self._make()
                self._context.__enter__()
            self._n_inside += 1

    def __exit__(self, *error):
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                self._context.__exit__(None, None, None)


_EXACT_CUDNN = _SharedContext(
    functools.partial(
        torch.backends.cudnn.flags,
        enabled=True,
        benchmark=False,
        deterministic=True,
        allow_tf32=False,
    )
)


def training_autocast(device):
    """Context that computes in bf16 where the device is faster with it."""
    return torch.autocast(
        device.type, torch.bfloat16, enabled=_is_faster_in_bf16(device)
    )


def training_layout(device):
    """Return the memory format in which convolutions train fastest on a device.

    Measured with float32 on AVX2 and ARM, whose backward passes take up to 1.5 times
    as long with channels last, and with bf16 on AMX and GPUs, which want them last.
    """
    if _is_faster_in_bf16(device):
        return torch.channels_last
    return torch.contiguous_format


def _is_faster_in_bf16(device):
    return cpu_has_amx() if device.type == "cpu" else device.type == "cuda"


@functools.cache
def cpu_has_amx():
    """Whether convolutions of a CPU use AMX, by what the processor says of itself.

    With AMX, bf16 trains in half the time of float32. Nothing is measured here, so that
    a machine always decides the same. All others train in float32: bf16 in AVX-512 and
    on ARM has not been shown to be faster, and without hardware for it, it can be a
    thousand times slower. So do versions of torch that do not tell.
    """
    limits = [os.environ.get(name, "").upper() for name in _ISA_LIMITS]
    if not all(limit in _NO_LIMITS or "AMX" in limit for limit in limits):
        return False
    is_there = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return torch.backends.mkldnn.is_available() and bool(is_there and is_there())
