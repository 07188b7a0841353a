"""Simultaneous requests inspected together, from a queue that does not grow."""

import os
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress

import torch

# Pixels that may wait, if more than one image does: each takes some bytes.
_MOST_PIXELS = 2 * 10**8
# Requests whose images are decoded at a time, each of which takes memory, too.
_N_DECODERS = min(max((os.cpu_count() or 1) // 4, 2), 8)
# Images that are inspected together, at most, and at least: a single one is recorded as
# a CUDA graph, so that fewer are faster one by one.
_MOST, _LEAST = 16, 8
# Seconds that a batch waits for images being decoded, and between two looks.
_PATIENCE, _LOOK = 0.03, 0.002


class BusyError(Exception):
    """The queue is full: try again later."""


class Batcher:
    """Inspects images that requests wait for, as many at a time as there are.

    `size` is how many images may wait. `turn` makes the context in which a batch is
    inspected, see `Turns`; `n_lines` share the memory for what waits.
    """

    def __init__(self, find_estimator, size=64, turn=nullcontext, n_lines=1):
        self._find_estimator, self._turn = find_estimator, turn
        self._n_lines = n_lines
        # A CPU is no faster with many at a time, and other lines would wait longer.
        self._joins = n_lines == 1 or torch.cuda.is_available()
        self._queue = queue.Queue(size)
        self.decoders = ThreadPoolExecutor(_N_DECODERS, "decoder")
        self._n_pixels = self._n_expected = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True, name="batcher")
        self._thread.start()

    @property
    def n_waiting(self):
        """Images in the queue, about."""
        return self._queue.qsize()

    @contextmanager
    def expecting(self, n_images):
        """Let a batch wait a moment for images that are submitted in the block."""
        self._count(n_expected=n_images)
        try:
            yield
        finally:
            self._count(n_expected=-n_images)

    def _count(self, n_expected=0, n_pixels=0):
        with self._counting:
            self._n_expected += n_expected
            self._n_pixels += n_pixels

    def submit(self, images):
        """Return a future for each of some arrays; raise `BusyError` if not all fit."""
        n_pixels = sum(image.size for image in images)
        if self._n_pixels and self._n_pixels + n_pixels > _MOST_PIXELS // self._n_lines:
            raise BusyError
        futures = []
        for image in images:
            futures.append(Future())
            self._count(n_pixels=image.size)
            try:
                self._queue.put_nowait((image, futures[-1]))
            except queue.Full:
                self._count(n_pixels=-image.size)
                for future in futures:
                    future.cancel()
                raise BusyError from None
        return futures

    def close(self):
        """End after the batch at hand; what waits is cancelled."""
        self.decoders.shutdown(wait=False, cancel_futures=True)
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()[1].cancel()
        self._queue.put(None)
        self._thread.join()

    def _run(self):
        is_open = True
        while is_open:
            batch = self._collect()
            is_open = batch[-1] is not None
            batch = batch if is_open else batch[:-1]
            self._count(n_pixels=-sum(image.size for image, _ in batch))
            batch = [x for x in batch if x[1].set_running_or_notify_cancel()]
            is_joined = self._joins and len(batch) >= _LEAST
            parts = [batch] if is_joined else [[x] for x in batch]
            for part in parts:
                with self._turn():
                    self._inspect(part)

    def _collect(self):
        """Wait for an image; return it and others that are there, or about to be."""
        batch, start = [self._queue.get()], time.monotonic()
        while len(batch) < _MOST and batch[-1] is not None:
            n = self._n_expected if time.monotonic() < start + _PATIENCE else 0
            waits = n > 0 and len(batch) + n >= _LEAST
            try:
                batch.append(self._queue.get(timeout=_LOOK if waits else 0))
            except queue.Empty:
                if not waits:
                    break
        return batch

    def _inspect(self, batch):
        """Answer a batch: each image alone where all together fail."""
        est = self._find_estimator()
        try:
            images = [image for image, _ in batch]
            results = est.inspect(images, names=len(est.defect_kinds_) > 0)
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for one in batch:
                self._inspect([one])
            return
        for i, (_, future) in enumerate(batch):
            future.set_result((est, {k: values[i] for k, values in results.items()}))
