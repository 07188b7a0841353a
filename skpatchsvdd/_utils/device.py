"""Where torch computes: devices, threads and number formats."""

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from numbers import Integral

import torch
import torch.nn.functional as F
from joblib import cpu_count

from skpatchsvdd._utils.forks import make_lock
from skpatchsvdd._utils.warnings import warn

# From how many times the speed of float32 on bf16 is used, and up to which fraction of
# that speed it is not even tried at length. Hardware for bf16 makes convolutions two to
# eight times as fast, so that chance never decides.
_CLEARLY_FASTER = 1.4
_HOPELESS = 0.25
# Far more threads than any machine has cores; torch crashes where it cannot start them.
_MOST_THREADS = 1024
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
_SETTING_THREADS = make_lock()
# Of a thread that works ahead of another one: how many threads that one may use.
_AHEAD = threading.local()
# The streams of a thread.
_STREAMS = threading.local()


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
        _check_fork(name)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = _parse_device(name)
    if device.type == "cuda":
        _check_fork(name)
    if not _is_available(device):
        raise ValueError(
            f"device={name!r} is not available on this machine. "
            "Pass device='auto' or device='cpu'."
        )
    return device


def fallback_device(name):
    """Like `check_device`, but an absent device becomes the CPU, with a warning."""
    device = None if name == "auto" else _parse_device(name)
    if device is None or device.type == "cuda":
        _check_fork(name)
    if device is None or _is_available(device):
        return check_device(name)
    warn(
        f"device={name!r} is not available on this machine. Continuing on the CPU; "
        "device='auto' would do so without a warning.",
    )
    return torch.device("cpu")


def _check_fork(name):
    """Raise if CUDA was used before this process was forked, so that it cannot here.

    Asking whether there is a GPU is to use it, also where there is none.
    """
    if torch.cuda._is_in_bad_fork() and torch.cuda.device_count() > 0:
        raise RuntimeError(
            f"device={name!r} means the GPU, but this process was forked from one that "
            "had used CUDA, which CUDA does not allow. Start processes by spawn, as "
            "joblib's loky does, or set_params(device='cpu')."
        )


def _parse_device(name):
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
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
    if not isinstance(n_jobs, Integral) or isinstance(n_jobs, bool):
        raise ValueError(f"n_jobs must be None or a whole number, got {n_jobs!r}.")
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
    """Let torch use `n_jobs` threads of the CPU inside; None leaves it as it is.

    For calls of this thread alone: what other threads use does not change.
    """
    if n_jobs is None:
        yield
        return
    before = torch.get_num_threads()
    _set_own_threads(count_threads(n_jobs))
    try:
        yield
    finally:
        _set_own_threads(before)


def _set_own_threads(n_threads):
    """Set the number of torch's threads for calls of this thread alone.

    torch sets it for this thread and for all that will be started. So a second thread,
    which has just been started and knows what is right for those, sets it back.
    """
    if n_threads == torch.get_num_threads():
        return
    with _SETTING_THREADS, ThreadPoolExecutor(1) as pool:
        n_others = pool.submit(torch.get_num_threads).result()
        torch.set_num_threads(n_threads)
        pool.submit(torch.set_num_threads, n_others).result()


def map_in_threads(function, items, n_most=None, uses_torch=False):
    """Return what a function gives for each item, by as many threads as torch uses.

    By `n_most` at most: only what leaves Python for a while, as decoders of images do,
    runs beside what is in Python, and more threads than that hinder each other. With
    `uses_torch` each has torch to itself: otherwise it would start as many again.
    """
    n_threads = getattr(_AHEAD, "n_threads", None) or torch.get_num_threads()
    n_threads = min(n_most or len(items), n_threads, len(items))
    if n_threads < 2:
        return [function(item) for item in items]
    begin = functools.partial(_set_own_threads, 1) if uses_torch else None
    with ThreadPoolExecutor(n_threads, initializer=begin) as pool:
        return list(pool.map(function, items))


def map_ahead(function, items):
    """Yield what a function gives for each item, in a thread that is one item ahead."""
    n_threads = torch.get_num_threads()
    count = functools.partial(setattr, _AHEAD, "n_threads")
    with ThreadPoolExecutor(1, initializer=count, initargs=(n_threads,)) as pool:
        ahead = None
        for item in items:
            former, ahead = ahead, pool.submit(function, item)
            if former is not None:
                yield former.result()
        if ahead is not None:
            yield ahead.result()


def computes(method):
    """Decorate a method of an estimator that computes with torch.

    It uses `n_jobs` threads, and where a GPU's memory runs out it says what to do.
    """

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        try:
            with torch_threads(self.n_jobs):
                return method(self, *args, **kwargs)
        except torch.cuda.OutOfMemoryError as error:
            if isinstance(error.__cause__, torch.cuda.OutOfMemoryError):
                raise  # from a method that this one calls
            name = method.__name__
            advice = _LESS_MEMORY.get(name, _LESS_TO_SCORE)
            raise torch.cuda.OutOfMemoryError(
                f"the memory of the GPU ran out in {name}; the estimator is as it was. "
                f"{advice} ({error})"
            ) from error

    return call


def as_current(device):
    """Context in which calls of CUDA that name no device, as of streams, mean this."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def own_stream(role, device, priority=0):
    """Return a stream of a GPU, the same one for each role in each thread.

    Of new ones torch has 32, and memory is set aside for every one that computes.
    """
    known = _STREAMS.__dict__.setdefault("by_role", {})
    key = role, device, priority
    if key not in known:
        known[key] = torch.cuda.Stream(device, priority)
    return known[key]


def run_beside(calls, device):
    """Call functions of nothing, beside each other on a GPU; return their results.

    What they start there is small and would leave most of it idle.
    """
    if device.type != "cuda":
        return [call() for call in calls]
    main = torch.cuda.current_stream(device)
    streams = [own_stream(i, device, main.priority) for i in range(len(calls))]
    results = []
    for call, stream in zip(calls, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(call())
    for stream in streams:
        main.wait_stream(stream)
    for x in results:
        if isinstance(x, torch.Tensor):
            x.record_stream(main)  # its memory is not used again too early
    return results


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
