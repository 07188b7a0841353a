"""A stack of checked images, read, scaled and resized when asked for."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._utils import map_ahead, safe_after_fork

# Bytes of images that are kept, at most, where they are read several times.
_HELD_BYTES = 2**29


class ImageStack:
    """Checked images of one size, brought to it and to their scale when asked for.

    So images on a disk, mapped or in files, are never in memory all at once.

    Parameters
    ----------
    read : callable
        ``read(indices)``, with a slice or an array of int, gives those images as an
        array of shape (n, height, width, n_channels), uint8, or float32 on the 0..1
        scale, in any layout: the stack hands out contiguous ones.
    image_shape : tuple of (height, width, n_channels)
        Shape of every image.
    sizes : list of (height, width)
        The size each image came in.
    files : list of str or None
        The paths of images that came as files.
    """

    def __init__(self, read, image_shape, sizes, files=None):
        self._source = read
        self.image_shape = tuple(image_shape)
        self.sizes = sizes
        self.files = [None] * len(sizes) if files is None else files

    def __len__(self):
        return len(self.sizes)

    def _read(self, indices):
        # X may be any view: with negative strides, which torch refuses, or in another
        # order of memory, in which a network would round differently.
        return np.ascontiguousarray(self._source(indices))

    @property
    def pixels(self):
        """All images at once, uint8, or float32 on the 0..1 scale."""
        return self._read(slice(None))

    @property
    def came_in_one_size(self):
        """Whether all images had the same size before any resizing."""
        return len(set(self.sizes)) == 1

    def take(self, indices):
        """Return the images at some indices as a stack of their own."""
        indices = np.asarray(indices)

        def read(own):
            return self._read(indices[own])

        sizes, files = ([x[i] for i in indices] for x in (self.sizes, self.files))
        return ImageStack(read, self.image_shape, sizes, files)

    def hold(self):
        """Return a stack that keeps what had to be decoded or resized, if it is little.

        For those who read all images several times; others would keep them in vain.
        """
        are_decoded = any(file is not None for file in self.files)
        are_resized = any(tuple(x) != self.image_shape[:2] for x in self.sizes)
        n_bytes = 4 * len(self) * math.prod(self.image_shape)
        if not (are_decoded or are_resized) or n_bytes > _HELD_BYTES:
            return self
        held = {}

        def read(indices):
            indices = np.arange(len(self))[indices]
            new = [i for i in indices if i not in held]
            if new:
                held.update(zip(new, self._read(np.array(new)), strict=True))
            return stack_pixels([held[i] for i in indices])

        return ImageStack(read, self.image_shape, self.sizes, self.files)

    def crop(self, window):
        """Return the part of all images in a window, a pair of slices, as a stack."""

        def read(indices):
            return self._read(indices)[(slice(None), *window)]

        *size, n_channels = self.image_shape
        pairs = zip(window, size, strict=True)
        size = tuple(len(range(length)[part]) for part, length in pairs)
        return ImageStack(read, (*size, n_channels), [size] * len(self))

    def hide_outside(self, roi):
        """Return the images with all pixels outside a mask (height, width) grey."""

        def read(indices):
            pixels = self._read(indices)
            grey = np.array(128 if pixels.dtype == np.uint8 else 0.5, pixels.dtype)
            return np.where(roi[:, :, None], pixels, grey)

        return ImageStack(read, self.image_shape, self.sizes, self.files)

    def batches(self, batch_size, is_ahead=False):
        """Yield (start, images of shape (n, height, width, n_channels)).

        At most so many at a time, and about as many each time. With `is_ahead` files
        are read while something else, as a GPU, works on those before.
        """
        n_batches = max(-(-len(self) // batch_size), 1)
        batch_size = max(-(-len(self) // n_batches), 1)
        starts = range(0, len(self), batch_size)
        slices = [slice(start, start + batch_size) for start in starts]
        is_slow = len(slices) > 1 and any(file is not None for file in self.files)
        read = map_ahead if is_ahead and is_slow else map
        yield from zip(starts, read(self._read, slices), strict=True)

    def mean_image(self):
        """Mean of the images on the 0..1 scale, float32."""
        total = np.zeros(self.image_shape, dtype=np.float64)
        for _, images in self.batches(16):
            total += pixels_to_float(images).sum(axis=0, dtype=np.float64)
        return (total / len(self)).astype(np.float32)


def stack_pixels(images):
    """Stack arrays of one shape, as bytes if all of them are, or as floats."""
    if len({image.dtype for image in images}) > 1:
        images = [pixels_to_float(image) for image in images]
    return np.stack(images)


def stack_images(pixels):
    """Make a stack of an array (n, height, width, n_channels), uint8 or 0..1 floats."""
    sizes = [pixels.shape[1:3]] * len(pixels)
    return ImageStack(pixels.__getitem__, pixels.shape[1:], sizes)


@safe_after_fork
def resize_image(image, size):
    """Resize one image (height, width, channels), anti-aliased, to 0..1 floats."""
    # Only what torch would not take is copied.
    pixels = np.require(pixels_to_float(image), requirements=["C", "W"])
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    x = F.interpolate(x, tuple(size), mode="bilinear", antialias=True)
    return x[0].permute(1, 2, 0).numpy()


def pixels_to_float(pixels):
    """Bring bytes, in an array or a tensor, to the 0..1 scale; floats stay."""
    if isinstance(pixels, torch.Tensor):
        return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
    return np.divide(pixels, 255, dtype=np.float32) if pixels.dtype == "u1" else pixels
