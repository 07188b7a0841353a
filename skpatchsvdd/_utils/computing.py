"""What a call computes with: device, number formats, memory, draws, distances."""

import functools
import os
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import torch

from skpatchsvdd._utils.messages import warn
from skpatchsvdd._utils.threads import (
    make_lock,
    safe_after_fork,
    sleeping_teams,
    torch_threads,
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
# Where Linux says what a group of processes, such as a container, may take.
_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
# Limits of what oneDNN may use of a processor, under either name, and limits that are
# none.
_ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_NO_LIMITS = ("", "ALL", "DEFAULT")


def computes(method):
    """Decorate a method of an estimator that computes with torch; see `compute`."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return compute(method, self, args, kwargs)

    return call


@safe_after_fork
def compute(method, estimator, args, kwargs):
    """Call a method with `n_jobs` threads and torch's normal mode.

    Where a GPU's memory runs out, the error says what to do.
    """
    try:
        with torch_threads(estimator.n_jobs), sleeping_teams(), normal_mode():
            return method(estimator, *args, **kwargs)
    except torch.cuda.OutOfMemoryError as error:
        if isinstance(error.__cause__, torch.cuda.OutOfMemoryError):
            raise  # from a method that this one calls
        name = method.__name__
        advice = _LESS_MEMORY.get(name, _LESS_TO_SCORE)
        raise torch.cuda.OutOfMemoryError(
            f"the memory of the GPU ran out in {name}; the estimator is as it was. "
            f"{advice} ({error})"
        ) from error


def normal_mode():
    """Context in which tensors can be trained, whatever the mode of the caller is."""
    return torch.inference_mode(False)


def check_device(name):
    """Return the torch device that a `device` parameter means on this machine."""
    device, is_there = _find_device(name)
    if not is_there:
        raise ValueError(
            f"device={name!r} is not available on this machine. "
            "Pass device='auto' or device='cpu'."
        )
    return device


def fallback_device(name):
    """Like `check_device`, but an absent device becomes the CPU, with a warning."""
    device, is_there = _find_device(name)
    if is_there:
        return device
    warn(
        f"device={name!r} is not available on this machine. Continuing on the CPU; "
        "device='auto' would do so without a warning.",
    )
    return torch.device("cpu")


def check_device_name(name):
    """Raise unless a name is that of a device, which need not be there."""
    try:
        device = torch.device("cpu" if name == "auto" else name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(
            f"device must be 'auto', 'cpu', 'cuda', 'cuda:1' (or another index) or "
            f"'mps', got {name!r}."
        )
    return device


def _find_device(name):
    """Return the device that a parameter means, and whether it is there."""
    device = check_device_name(name)
    if name == "auto" or device.type == "cuda":
        # Asking whether there is a GPU is to use it, also where there is none.
        if torch.cuda._is_in_bad_fork() and torch.cuda.device_count() > 0:
            raise RuntimeError(
                f"device={name!r} means the GPU, but this process was forked from one "
                "that had used CUDA, which CUDA does not allow. Start processes by "
                "spawn, as joblib's loky does, or set_params(device='cpu')."
            )
        if name == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu"), True
        return device, (device.index or 0) < torch.cuda.device_count()
    return device, device.type == "cpu" or torch.backends.mps.is_available()


def memory_size():
    """Return the bytes of memory that this process could take, or None if unknown."""
    sizes = []
    with suppress(AttributeError, OSError, ValueError):  # as on Windows
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            sizes.append(int(Path(file).read_text()))
    return min(sizes, default=None)


def is_out_of_memory(error):
    """Whether an exception says that memory, of whatever kind, has run out."""
    # torch has no class of its own for memory of the CPU.
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
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


def exact_convolutions(device=None):
    """Context in which convolutions are plain float32 and repeat to the last bit.

    With cuDNN's TF32, features would differ by a thousandth between a GPU and a CPU.
    Its settings are those of the process, and stay as they are if `device` is a CPU.
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

    With AMX, bf16 trains in half the time of float32; in AVX-512 and on ARM it has not
    been shown to be faster, and without hardware for it, it can be a thousand times
    slower. Nothing is measured here, so that a machine always decides the same.
    """
    limits = [os.environ.get(name, "").upper() for name in _ISA_LIMITS]
    if not all(limit in _NO_LIMITS or "AMX" in limit for limit in limits):
        return False
    is_there = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return torch.backends.mkldnn.is_available() and bool(is_there and is_there())


def draw_seed(rng):
    """Draw the seed of another generator from a RandomState."""
    return int(rng.randint(np.iinfo(np.int32).max))


class Draws:
    """Draws tensors from a generator, for a device; None is that of the generator.

    A generator of the CPU draws the same for all devices.
    """

    def __init__(self, generator, device=None):
        self.generator = generator
        self.device = generator.device if device is None else device
        self._source = {"generator": generator, "device": generator.device}

    def integers(self, low, high, shape):
        """Draw integers from low to high - 1."""
        return torch.randint(low, high, shape, **self._source).to(self.device)

    def uniform(self, low, high, shape):
        """Draw floats between low and high."""
        x = torch.rand(shape, **self._source).to(self.device)
        return low + (high - low) * x

    def normal(self, scale, shape):
        """Draw floats from a normal distribution around 0."""
        return scale * torch.randn(shape, **self._source).to(self.device)


def expand(half_squares, x, columns):
    r"""Return half the squared distance of every pair, without the term of x alone.

    .. math:: \tfrac12 \| x - y \|^2 - \tfrac12 \| x \|^2
        = \tfrac12 \| y \|^2 - x \cdot y

    `halve_squares` gives those of y, `as_columns` its points. For the rounding error
    see ``_bank.clusters.product_error``.
    """
    # (m,), (n, n_features) and (n_features, m) to (n, m)
    return torch.addmm(half_squares, x, columns, alpha=-1)


def halve_squares(rows):
    """Return half the squared length of each row, (n,)."""
    return rows.square().sum(dim=1) / 2


def as_columns(rows):
    """Return rows as columns, a copy: on ARM a product with a view is twice as slow."""
    return rows.T.contiguous()
