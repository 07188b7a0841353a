"""Recognising images that were seen before."""

import hashlib

import numpy as np

from skpatchsvdd._images.stack import pixels_to_float
from skpatchsvdd._utils import warn

# Every how many rows and columns a pixel counts in the first, quick part of a digest,
# and its length.
_QUICK_STEP, _QUICK_BYTES = 16, 8


class KnownImages:
    """Recognises images by their digests.

    Parameters
    ----------
    digests : list of bytes
        Those of the known images, in order.
    """

    def __init__(self, digests=()):
        self._indices = {digest: i for i, digest in enumerate(digests)}
        self._beginnings = {digest[:_QUICK_BYTES] for digest in digests}

    def find(self, image):
        """Return the index of an image among the known ones, or -1."""
        # A quick look is enough for almost all images that are not known.
        if _quick_digest(image) not in self._beginnings:
            return -1
        return self._indices.get(image_digest(image), -1)


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


def list_digests(images):
    """Digest every image of a stack."""
    return [image_digest(x) for _, batch in images.batches(16) for x in batch]


def digest_images(images):
    """Digest every image, and warn where some are the same."""
    digests = list_digests(images)
    n_copies = len(digests) - len(set(digests))
    if n_copies:
        warn(
            f"X holds {n_copies} copies of other images. Copies find each other in the "
            "bank and look too normal, so that the threshold is too strict: fit to "
            "each image once.",
        )
    return digests
