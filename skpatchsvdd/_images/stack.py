"""From what came in to pixels, when asked for; and images recognised by these."""

import hashlib
import itertools
import math
import os
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._images.files import read_known
from skpatchsvdd._utils import (
    check_mapped,
    map_ahead,
    map_in_threads,
    safe_after_fork,
    warn,
)

# Bytes of images that are kept, at most, where they are read several times.
_HELD_BYTES = 2**29
# Pixels that take as long to decode as what is done in Python for a file: files are
# read by a thread for each time so many, if there are as many cores.
_PIXELS_PER_READER = 2**14
# Every how many rows and columns a pixel counts in the first, quick part of a digest,
# and its length.
_QUICK_STEP, _QUICK_BYTES = 16, 8
# Images that are digested at a time, and copies that a warning names, at most.
_BATCH, _N_NAMED = 32, 5


def is_path(x):
    """Whether something names a file."""
    return isinstance(x, str | os.PathLike)


@dataclass(frozen=True, eq=False)
class ImageStack:
    """Checked images of one shape, loaded, scaled and resized when asked for.

    So images on a disk, mapped or in files, are never in memory all at once.
    """

    items: np.ndarray | list  # (n, height, width, n_channels), or arrays, or paths
    shapes: list  # (height, width, n_channels) in which each of them came
    full_shape: tuple  # to which all are brought
    indices: np.ndarray | None = None  # of those in the stack; None is all
    roi: np.ndarray | None = None  # bool (height, width): where images are not grey
    window: tuple = (slice(None), slice(None))  # the part of images in the stack
    kept: dict | None = None  # images, for those who load them several times
    # Images are read at so many times the size of the stack: at full resolution.
    reduction: int = 1

    @cached_property
    def image_shape(self):
        """Height, width and channels of every image."""
        *size, n_channels = self.full_shape
        pairs = zip(size, self.window, strict=True)
        return (*(len(range(length)[part]) for length, part in pairs), n_channels)

    @cached_property
    def sizes(self):
        """The (height, width) each image came in."""
        return [self.shapes[i][:2] for i in self._indices]

    @cached_property
    def files(self):
        """The paths of images that came as files, from the root on; None of others."""
        items = (self.items[i] for i in self._indices)
        return [os.path.abspath(x) if is_path(x) else None for x in items]

    @property
    def _read_shape(self):
        height, width, n_channels = self.full_shape
        return height * self.reduction, width * self.reduction, n_channels

    @property
    def _indices(self):
        return np.arange(len(self.items)) if self.indices is None else self.indices

    def __len__(self):
        return len(self.items if self.indices is None else self.indices)

    def read(self, chosen):
        """Return some images of the stack, by a slice or an array of int."""
        pixels = self._load(chosen)
        if self.roi is not None:
            grey = np.array(128 if pixels.dtype == np.uint8 else 0.5, pixels.dtype)
            pixels = np.where(self.roi[:, :, None], pixels, grey)
        # torch refuses negative strides, and rounds otherwise in another memory order.
        return np.ascontiguousarray(pixels[(slice(None), *self.window)])

    def _load(self, chosen):
        if isinstance(self.items, np.ndarray):
            check_mapped(self.items, "X")
            if self.items.shape[1:] == self._read_shape:
                # Of all images, a slice copies nothing.
                chosen = chosen if self.indices is None else self.indices[chosen]
                return to_scale(self.items[chosen])
        indices = self._indices[chosen]
        images = {} if self.kept is None else self.kept
        new = [i for i in dict.fromkeys(indices) if i not in images]
        images.update(zip(new, self._load_singly(new), strict=True))
        chosen = [images[i] for i in indices]
        if len({image.dtype for image in chosen}) > 1:
            chosen = [pixels_to_float(image) for image in chosen]
        return np.stack(chosen)

    def _load_singly(self, indices):
        sizes = {self.shapes[i][:2] for i in indices}
        n_threads = 1
        if is_path(self.items[0]):
            n_pixels = max(map(math.prod, sizes), default=0)
            n_threads = max(n_pixels // _PIXELS_PER_READER, 1)
        resizes = sizes != {self._read_shape[:2]}
        return map_in_threads(self._load_one, indices, n_threads, resizes)

    def _load_one(self, i):
        """Return one image, (height, width, n_channels), as uint8 or 0..1 floats."""
        *size, n_channels = self._read_shape
        image = self.items[i]
        if is_path(image):
            image = read_known(image, self.shapes[i], size)
        if image.shape[2] != n_channels:  # grey among colour becomes colour
            image = np.broadcast_to(image, (*image.shape[:2], n_channels))
        image = to_scale(image)
        return image if [*image.shape[:2]] == size else resize_image(image, size)

    @property
    def pixels(self):
        """All images at once, uint8, or float32 on the 0..1 scale."""
        return self.read(slice(None))

    @property
    def came_in_one_size(self):
        """Whether all images had the same size before any resizing."""
        return len(set(self.sizes)) == 1

    def take(self, indices):
        """Return the images at these indices, as a stack."""
        return replace(self, indices=self._indices[np.asarray(indices, dtype=int)])

    def hold(self):
        """Return a stack that keeps what had to be decoded or resized, if it is little.

        For images that are read several times.
        """
        are_decoded = is_path(self.items[0])
        are_resized = any(size != self._read_shape[:2] for size in self.sizes)
        n_bytes = 4 * len(self) * math.prod(self._read_shape)
        if not (are_decoded or are_resized) or n_bytes > _HELD_BYTES:
            return self
        return replace(self, kept={})

    def reduce(self):
        """Return the images as coarse scales see them, in the size of the stack."""
        if self.reduction == 1:
            return self
        return replace(self, reduction=1, kept=None).hold()

    def crop(self, window):
        """Return the part of all images in a window, a pair of slices, as a stack."""
        return replace(self, window=window)

    def hide_outside(self, roi):
        """Return the images with all pixels outside a mask (height, width) grey."""
        return replace(self, roi=roi)

    def batches(self, batch_size, is_ahead=False):
        """Yield (start, images of shape (n, height, width, n_channels)).

        At most, and about, so many each time. With `is_ahead` files are read while
        something else, as a GPU, works on those before.
        """
        n_batches = max(-(-len(self) // batch_size), 1)
        batch_size = max(-(-len(self) // n_batches), 1)
        starts = range(0, len(self), batch_size)
        slices = [slice(start, start + batch_size) for start in starts]
        is_slow = len(slices) > 1 and is_path(self.items[0])
        read = map_ahead if is_ahead and is_slow else map
        yield from zip(starts, read(self.read, slices), strict=True)

    def mean_image(self):
        """Mean of the images on the 0..1 scale, float32."""
        total = np.zeros(self.image_shape, dtype=np.float64)
        for _, images in self.batches(16):
            total += pixels_to_float(images).sum(axis=0, dtype=np.float64)
        return (total / len(self)).astype(np.float32)


def stack_images(pixels):
    """Make a stack of an array (n, height, width, n_channels), uint8 or 0..1 floats."""
    shape = pixels.shape[1:]
    return ImageStack(pixels, [shape] * len(pixels), shape)


def to_scale(pixels):
    """Bring pixels to uint8 or to float32 on the 0..1 scale."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "u":
        return np.divide(pixels, 65535, dtype=np.float32)
    return pixels.astype(np.float32, copy=False)


@safe_after_fork
def resize_image(image, size):
    """Resize one image (height, width, channels), anti-aliased, to 0..1 floats."""
    # Only what torch would not take is copied.
    pixels = np.require(pixels_to_float(image), requirements=["C", "W"])
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return resize_images(x, size)[0].permute(1, 2, 0).numpy()


def resize_images(x, size):
    """Resize images (n, channels, height, width), anti-aliased."""
    return F.interpolate(x, tuple(size), mode="bilinear", antialias=True)


def pixels_to_float(pixels):
    """Bring integers, in an array or a tensor, to the 0..1 scale; floats stay."""
    if isinstance(pixels, torch.Tensor):
        return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
    if pixels.dtype == np.uint8:
        return np.divide(pixels, 255, dtype=np.float32)
    return to_scale(pixels) if pixels.dtype.kind == "u" else pixels


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
    digests, n_bytes = [], 4 * math.prod(images.full_shape) * images.reduction**2
    size = max(min(_BATCH, _HELD_BYTES // n_bytes), 1)
    for _, batch in images.batches(size, is_ahead=True):
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
