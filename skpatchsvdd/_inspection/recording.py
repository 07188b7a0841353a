"""The way of a single image on a GPU, recorded."""

import threading

import torch

# Calls before it is recorded: libraries set themselves up in the first ones, and few
# images are sooner done than recorded.
_N_PLAIN = 3


class Recording:
    """Computes something from one image, from the fourth call on by a recorded graph.

    The way of an image is a hundred small kernels, and starting them one by one takes
    longer than running them.

    Parameters
    ----------
    compute : callable
        Takes images on the device, a tensor of shape (1, height, width, n_channels),
        and returns two tensors. It waits for nothing that the device has computed, and
        copies nothing from the host; else it is never recorded.
    """

    def __init__(self, compute):
        self._compute = compute
        self._n_calls = 0
        self._graph = None
        self._lock = threading.Lock()

    def __call__(self, image):
        """Return what `compute` returns for a tensor of one image."""
        if not self._lock.acquire(blocking=False):  # another thread is at it
            return self._compute(image)
        try:
            return self._call(image)
        finally:
            self._lock.release()

    def _call(self, image):
        self._n_calls += 1
        if self._n_calls == _N_PLAIN + 1:
            self._record(image)
        if self._graph is None or image.dtype != self._image.dtype:
            return self._compute(image)
        self._image.copy_(image)
        self._graph.replay()
        return tuple(x.clone() for x in self._results)

    def _record(self, image):
        self._image = image.clone()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._results = self._compute(self._image)
        except RuntimeError:  # as where memory runs out: it works without
            return
        self._graph = graph
