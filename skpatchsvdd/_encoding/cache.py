"""Features of images that were encoded before, for fits that look at them again.

A fit encodes each image several times, and a search fits to the same images again and
again, with another embedding each time.
"""

import hashlib
import os
from collections import OrderedDict
from contextlib import contextmanager

import torch

from skpatchsvdd._utils import make_lock

# Bytes of features that are held, at most: five hundred images of 256 x 256.
LIMIT = 2**28


class FeatureCache:
    """The latest features by a digest of the pixels they were computed from.

    An image of which a single bit differs has another digest, and so has a network, so
    that features are never those of another image or network. It is filled while
    estimators fit, and read whenever it holds anything. Processes have one each, and
    threads share it.
    """

    def __init__(self, limit=LIMIT):
        self.limit = limit
        self.n_bytes = 0
        self._found = OrderedDict()
        self._lock = make_lock()
        self._n_filling = 0
        if hasattr(os, "register_at_fork"):  # who was filling it is not in the child
            os.register_at_fork(after_in_child=self._stop_filling)

    def _stop_filling(self):
        self._n_filling = 0

    def __len__(self):
        return len(self._found)

    @contextmanager
    def filling(self):
        """Let what is encoded meanwhile be held."""
        with self._lock:
            self._n_filling += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_filling = max(self._n_filling - 1, 0)

    def clear(self):
        """Let go of everything."""
        with self._lock:
            self._found.clear()
            self.n_bytes = 0

    def __call__(self, encode, images, identify=str):
        """Return ``encode(images)``, a list of tensors, which must not be changed.

        ``identify()`` gives a digest of what encodes.
        """
        if not (self._found or self._n_filling):
            return encode(images)
        # Sums are rounded by the number of threads.
        key = identify(), images.shape, torch.get_num_threads(), _digest(images)
        with self._lock:
            features = self._found.get(key)
            if features is not None:
                self._found.move_to_end(key)
                return features
        features = encode(images)
        if self._n_filling:
            self._hold(key, features)
        return features

    def _hold(self, key, features):
        n_bytes = _count_bytes(features)
        with self._lock:
            if key in self._found or n_bytes > self.limit:
                return
            self._found[key] = features
            self.n_bytes += n_bytes
            while self.n_bytes > self.limit:
                _, oldest = self._found.popitem(last=False)
                self.n_bytes -= _count_bytes(oldest)


CACHE = FeatureCache()


def clear_cache() -> None:
    """Let go of the features of images that estimators were fitted to.

    On a CPU, up to 256 MiB of features before they are embedded are kept for further
    fits of a search, see :ref:`search_time`. Nothing but the time of the next fit
    depends on them.

    Examples
    --------
    >>> import skpatchsvdd
    >>> skpatchsvdd.clear_cache()
    """
    CACHE.clear()


def remembering():
    """Context, as of `fit`, in which images are encoded again and again."""
    return CACHE.filling()


def remember(encoder, images):
    """Return ``encoder.encode_pretrained(images)``, from the cache if it may be there.

    It is not on a GPU, which has encoded images before their digest is computed, and
    where somebody asks for gradients.
    """
    is_cpu = images.device.type == "cpu"
    if not is_cpu or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return encoder.encode_pretrained(images)
    return CACHE(encoder.encode_pretrained, images, encoder.digest)


def _digest(images):
    pixels = images.contiguous().numpy().data
    return hashlib.blake2b(pixels, digest_size=16).digest()


def _count_bytes(features):
    return sum(x.element_size() * x.numel() for x in features)
