"""Recognising images that were seen before."""

import hashlib
import itertools

import numpy as np

from skpatchsvdd._images.stack import pixels_to_float
from skpatchsvdd._utils import map_in_threads, warn

# Every how many rows and columns a pixel counts in the first, quick part of a digest,
# and its length.
_QUICK_STEP, _QUICK_BYTES = 16, 8
# Images that are read at a time.
_BATCH = 32
# Copies that a warning names, at most.
_N_NAMED = 5


class KnownImages:
    """Recognises images by their digests, those of the known ones in order."""

    def __init__(self, digests=()):
        self._indices = {digest: i for i, digest in enumerate(digests)}
        self._beginnings = {digest[:_QUICK_BYTES] for digest in digests}

    def find(self, images):
        """Return the indices of images among the known ones, or -1, a list."""
        # A quick look is enough for almost all images that are not known.
        likely = [_quick_digest(image) in self._beginnings for image in images]
        indices = np.full(len(images), -1)
        digests = map_in_threads(image_digest, list(itertools.compress(images, likely)))
        indices[likely] = [self._indices.get(digest, -1) for digest in digests]
        return indices.tolist()


def image_digest(image):
    """Return bytes that tell one image from any other: of few pixels, then of all.

    Bytes and the same image on the 0..1 scale have the same digest.
    """
    return _quick_digest(image) + _hash(image, 16)


def _quick_digest(image):
    return _hash(image[::_QUICK_STEP, ::_QUICK_STEP], _QUICK_BYTES)


def _hash(image, n_bytes):
    pixels = np.ascontiguousarray(pixels_to_float(image))
    return hashlib.blake2b(pixels, digest_size=n_bytes).digest()


def list_digests(images, progress=None):
    """Digest every image of a stack; ``progress(n)`` is told how many are done."""
    digests = []
    for _, batch in images.batches(_BATCH, is_ahead=True):
        digests += map_in_threads(image_digest, batch)
        if progress is not None:
            progress(len(digests))
    return digests


def digest_images(images, progress=None):
    """Digest every image, and warn where some are the same."""
    digests = list_digests(images, progress)
    first = {}
    for i, digest in enumerate(digests):
        first.setdefault(digest, i)
    copies = [(i, first[x]) for i, x in enumerate(digests) if first[x] != i]
    if copies:
        named = [
            f"{_name(images, i)} is the same as {_name(images, first)}"
            for i, first in copies[:_N_NAMED]
        ]
        if len(copies) > _N_NAMED:
            named.append(f"and {len(copies) - _N_NAMED} more")
        warn(
            f"X holds {len(copies)} copies of other images: {', '.join(named)}. Copies "
            "find each other in the bank and look too normal, so that the threshold is "
            "too strict: fit to each image once.",
        )
    return digests


def _name(images, i):
    return f"normal image {i}" if images.files[i] is None else images.files[i]
