"""What is special about a GPU: CUDA graphs, streams, and copies beside computing.

A graph is many small kernels, recorded once and then started by a single call: starting
them one by one takes longer than running them, in training and for a single image.
"""

import threading
from contextlib import contextmanager, nullcontext

import torch

from skpatchsvdd._utils import make_lock, warn

# Calls before one is recorded: libraries set themselves up in the first ones.
_N_EAGER = 3
# One thread records at a time: a recording begins with a wait for the whole GPU, which
# no other recording survives.
_RECORDING = make_lock()
_STREAMS = threading.local()


class GraphedCall:
    """A function of tensors that, after a few calls, is replayed as a CUDA graph.

    Where it cannot be recorded, and for other shapes and types than those recorded, it
    is called as it is. To be recorded, it may neither wait for what the GPU computes
    (no host synchronisation) nor copy from the host.

    It is called and recorded on `stream`, whose priority a graph keeps, or on the
    current one. `generator` is what it draws from, and `name` what it computes, for a
    warning where it cannot be recorded; without there is none.
    """

    def __init__(
        self, function, n_eager=_N_EAGER, stream=None, generator=None, name=None
    ):
        self._function = function
        self._n_eager = n_eager
        self._stream = stream
        self._generator = generator
        self._name = name
        self._n_calls = 0
        self._graph = None

    @property
    def is_recorded(self):
        """Whether there is a graph."""
        return self._graph is not None

    def __call__(self, *inputs):
        """Return what the function returns; the next call may overwrite it."""
        self._n_calls += 1
        if self._n_calls == self._n_eager + 1:
            self._record(inputs)
        if self._graph is None or not self._fits(inputs):
            with self._on_stream():
                return self._function(*inputs)
        return self._replay(inputs)

    def _fits(self, inputs):
        pairs = zip(inputs, self._inputs, strict=True)
        return all(x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)

    def _replay(self, inputs):
        for recorded, x in zip(self._inputs, inputs, strict=True):
            recorded.copy_(x)
        self._graph.replay()
        return self._results

    @contextmanager
    def _on_stream(self):
        if self._stream is None:
            yield
            return
        main = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            yield
        main.wait_stream(self._stream)

    def _record(self, inputs):
        self._inputs = [x.clone() for x in inputs]
        try:
            graph = torch.cuda.CUDAGraph()
            if self._generator is not None:
                graph.register_generator_state(self._generator)
            # Other threads may use the GPU meanwhile.
            recording = torch.cuda.graph(
                graph, stream=self._stream, capture_error_mode="thread_local"
            )
            with _RECORDING, recording:
                self._results = self._function(*self._inputs)
            self._graph = graph
        except Exception as error:  # it works without: errors of its own come again
            self._release_generator()
            if self._name is not None:
                warn(
                    f"the {self._name} cannot be recorded as a CUDA graph, so that it "
                    f"takes longer: {error}"
                )

    def _release_generator(self):
        """Free the generator, which draws nothing else after a failed recording."""
        if self._generator is not None:
            self._generator.graphsafe_set_state(self._generator.clone_state())


class SharedGraphedCall(GraphedCall):
    """A `GraphedCall` that threads may share: what it returns is not overwritten.

    A thread that comes while another one is inside calls the function as it is.
    """

    def __init__(self, function):
        super().__init__(function)
        self._lock = threading.Lock()

    def __call__(self, *inputs):
        """Return what the function returns, a tuple of tensors."""
        if not self._lock.acquire(blocking=False):
            return self._function(*inputs)
        try:
            return super().__call__(*inputs)
        finally:
            self._lock.release()

    def _replay(self, inputs):
        return tuple(x.clone() for x in super()._replay(inputs))


def current_device(device):
    """Context in which calls of CUDA that name no device mean this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def thread_stream(role, device, priority=0):
    """Return a stream of a GPU, the same one for each role in each thread.

    torch has 32 streams, and sets memory aside for every one that computes.
    """
    known = _STREAMS.__dict__.setdefault("by_role", {})
    key = role, device, priority
    if key not in known:
        known[key] = torch.cuda.Stream(device, priority)
    return known[key]


def run_concurrently(calls, device):
    """Return what functions without parameters return, a list.

    On a GPU each has its own stream, for functions whose kernels are too small to fill
    it.
    """
    if device.type != "cuda":
        return [call() for call in calls]
    main = torch.cuda.current_stream(device)
    streams = [thread_stream(i, device, main.priority) for i in range(len(calls))]
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


def prefetch(batches, device):
    """Yield tuples of tensors on a device as tuples of arrays.

    A GPU is one batch ahead: it computes the next batch while the caller uses the
    arrays of the last one.
    """
    if device.type != "cuda":
        for tensors in batches:
            yield tuple(x.cpu().numpy() for x in tensors)
        return
    pending = None
    for tensors in batches:
        former, pending = pending, _start_copies(tensors, device)
        if former is not None:
            yield _finish_copies(*former)
    if pending is not None:
        yield _finish_copies(*pending)


def _start_copies(tensors, device):
    """Begin to copy tensors from a GPU; return copies, and an event when they are."""
    with current_device(device):
        copies = [
            torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(
                x, non_blocking=True
            )
            for x in tensors
        ]
        done = torch.cuda.Event()
        done.record()
    return copies, done


def _finish_copies(copies, done):
    done.synchronize()
    # Not views: pinned memory is scarce.
    return tuple(x.numpy().copy() for x in copies)
