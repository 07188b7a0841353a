"""Where torch computes: devices, threads and number formats."""

import functools
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from joblib import cpu_count

from skpatchsvdd._warnings import warn


def check_device(name):
    """Return the torch device that a `device` parameter means on this machine.

    Parameters
    ----------
    name : str
        "auto" is CUDA where there is a GPU and the CPU elsewhere. Any other value is
        a device in torch's words: "cpu", "cuda", "cuda:1", "mps".

    Returns
    -------
    device : torch.device
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = _parse_device(name)
    if not _is_available(device):
        raise ValueError(
            f"device={name!r} is not available on this machine. "
            "Pass device='auto' or device='cpu'."
        )
    return device


def fallback_device(name):
    """Like `check_device`, but an absent device becomes the CPU, with a warning."""
    if name == "auto" or _is_available(_parse_device(name)):
        return check_device(name)
    warn(
        f"device={name!r} is not available on this machine. Going on with the CPU; "
        "device='auto' would do so without a warning.",
    )
    return torch.device("cpu")


def _parse_device(name):
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(
            f"device must be 'auto', 'cpu', 'cuda', 'cuda:1' (or another index) or "
            f"'mps', got {name!r}."
        )
    return device


def _is_available(device):
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available()
    return True


def count_threads(n_jobs):
    """Return the threads of this machine that an `n_jobs` parameter means.

    joblib's own answer would depend on the cluster that a call may run in.
    """
    if n_jobs == 0:
        raise ValueError("n_jobs=0 has no meaning. Pass None, -1 or a positive number.")
    return n_jobs if n_jobs > 0 else max(cpu_count() + 1 + n_jobs, 1)


@contextmanager
def torch_threads(n_jobs):
    """Let torch use `n_jobs` threads of the CPU inside; None leaves it as it is."""
    if n_jobs is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count_threads(n_jobs))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_current(device):
    """Context in which calls of CUDA that name no device, as of streams, mean this."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def exact_convolutions():
    """Context in which convolutions are plain float32 and repeat to the last bit.

    cuDNN would otherwise round inputs to TF32, and features of one image would differ
    by a thousandth between a GPU and a CPU.
    """
    return torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )


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


def training_autocast(device):
    """Context that computes in bf16 where the device is faster with it."""
    enabled = device.type == "cuda" or (device.type == "cpu" and _cpu_has_fast_bf16())
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


@functools.cache
def _cpu_has_fast_bf16():
    """Whether the processor multiplies bf16 matrices in hardware (AMX)."""
    try:
        return " amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
