"""Number formats: exact convolutions, and bf16 where training is faster with it."""

import functools
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F

from skpatchsvdd._utils.forks import make_lock

# From how many times the speed of float32 on bf16 is used, and up to which fraction of
# that speed it is not even tried at length. Hardware for bf16 makes convolutions two to
# eight times as fast, so that chance never decides.
_CLEARLY_FASTER = 1.4
_HOPELESS = 0.25


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
    float32, bf16 = map(min, zip(*times, strict=True))
    return float32 / bf16
