"""Where torch computes: devices, threads and number formats."""

import functools
import time
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from joblib import cpu_count

from skpatchsvdd._utils.warnings import warn

# From how many times the speed of float32 on bf16 is used, and up to which fraction of
# that speed it is not even tried at length. Hardware for bf16 makes convolutions two to
# eight times as fast, so that chance never decides.
_CLEARLY_FASTER = 1.4
_HOPELESS = 0.25
# Far more threads than any machine has cores; torch crashes where it cannot start them.
_MOST_THREADS = 1024


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
        f"device={name!r} is not available on this machine. Continuing on the CPU; "
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
    if n_jobs > _MOST_THREADS:
        raise ValueError(
            f"n_jobs={n_jobs} threads are more than can be started. Pass -1 for one on "
            f"each core, or {_MOST_THREADS} at most."
        )
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
    return torch.autocast(
        device.type, torch.bfloat16, enabled=_is_faster_in_bf16(device)
    )


def training_layout(device):
    """Return the memory format in which convolutions train fastest on a device.

    Measured with float32 on AVX2 and ARM, whose backward passes take up to 1.5 times
    as long with channels last, and with bf16 on AMX and GPUs, which want them last.
    """
    channels_last = _is_faster_in_bf16(device)
    return torch.channels_last if channels_last else torch.contiguous_format


def _is_faster_in_bf16(device):
    if device.type == "cpu":
        return cpu_is_faster_in_bf16(torch.get_num_threads())
    return device.type == "cuda"


@functools.cache
def cpu_is_faster_in_bf16(n_threads):
    """Whether a convolution and its gradients are clearly faster in bf16, by a trial.

    A processor's name does not tell: bf16 may be switched off, or be there and not be
    made use of. Where there is no hardware for it, it can be a thousand times slower:
    a small convolution is tried first.
    """
    with torch.inference_mode(False), torch.enable_grad():
        if _compare_formats(n_channels=32, size=14, n_trials=2) < _HOPELESS:
            return False
        return _compare_formats(n_channels=64, size=34, n_trials=5) > _CLEARLY_FASTER


def _compare_formats(n_channels, size, n_trials):
    """Return how many times as fast a convolution is in bf16 as in float32."""
    x = torch.zeros(2, n_channels, size, size, requires_grad=True)
    weight = torch.zeros(n_channels, n_channels, 3, 3, requires_grad=True)

    def run(dtype):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = F.conv2d(x, weight)
        torch.autograd.grad(y.float().sum(), (x, weight))
        return time.perf_counter() - start

    times = [(run(torch.float32), run(torch.bfloat16)) for _ in range(n_trials)]
    float32, bf16 = (min(some) for some in zip(*times, strict=True))
    return float32 / bf16
