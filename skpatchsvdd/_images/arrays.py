"""Images in any accepted form, checked and stacked."""

import math
import os
from numbers import Integral

import numpy as np

from skpatchsvdd._images.files import (
    find_max_pixels,
    has_bytes,
    read_image,
    read_shape,
)
from skpatchsvdd._images.forms import as_images, is_path
from skpatchsvdd._images.scale import check_scale, to_scale, warn_if_not_scaled
from skpatchsvdd._images.stack import ImageStack, resize_image, stack_pixels
from skpatchsvdd._utils import check_mapped, map_in_threads, memory_size

# No image has so few rows: an axis this short holds channels.
_FEW_CHANNELS = 4
# Threads that read the sizes of files, which is done in Python but for the disk. And
# pixels that take as long to decode as what is done in Python for a file: files are
# read by a thread for each time so many, if there are as many cores.
_N_READERS, _PIXELS_PER_READER = 4, 2**14
# Arrays of floats of an image's size, at least, while one is inspected: as it was
# resized, as it is encoded, its light taken out, and its map.
_N_COPIES = 4
# Files, at most, whose scale is looked at.
_N_LOOKED_AT = 8


def check_images(X, *, image_size=None, n_channels=1):
    """Check images in any accepted form and return them as one stack.

    Parameters
    ----------
    X : array-like or list
        Arrays or tensors (n, height, width) or (n, height, width, channels), or a list
        of single images, pillow's among them, or of paths of image files. Neither an
        array that is mapped into memory nor files are read as a whole.
    image_size : int, pair or None
        Size to which every image is resized.
    n_channels : int
        Channels of files, at least: grey ones become colour.

    Returns
    -------
    images : ImageStack
    """
    size = check_image_size(image_size)
    X = as_images(X)
    if isinstance(X, np.ndarray):
        return _stack_array(X, size)
    if is_path(X[0]):
        return _stack_files(X, size, n_channels)
    return _stack_list(X, size)


def list_images(X):
    """Return images in any accepted form so that each element is one of them.

    An array, a list of arrays or a list of paths.
    """
    X = as_images(X)
    if isinstance(X, np.ndarray):
        _refuse_rows(X)
    return X


def check_image_size(image_size):
    """Return `image_size` as (height, width) or None."""
    if image_size is None:
        return None
    if isinstance(image_size, Integral):
        image_size = (image_size, image_size)
    if not _are_positive_integers(image_size, lengths=(2,)):
        raise ValueError(
            "image_size must be None, a positive integer or a pair (height, width) of "
            f"positive integers, got {image_size!r}."
        )
    return tuple(int(length) for length in image_size)


def _check_memory(size, n_channels):
    """Return a size, or raise if a single image of it would not fit into memory."""
    n_bytes, there = _N_COPIES * 4 * math.prod(size) * n_channels, memory_size()
    if there is not None and n_bytes > there:
        raise ValueError(
            f"image_size={size} makes images that take {n_bytes / 2**30:,.1f} GiB each "
            f"while they are inspected, and there are {there / 2**30:,.1f} GiB of "
            "memory. Pass a smaller image_size."
        )
    return size


def _stack_array(X, size):
    _check_axes(X)
    X = _add_axes(X)
    warn_if_not_scaled([X.dtype], [check_scale(X, "X")])
    size = X.shape[1:3] if size is None else _check_memory(size, X.shape[3])

    def read(indices):
        check_mapped(X, "X")
        pixels = to_scale(X[indices])
        if size == X.shape[1:3]:
            return pixels
        return np.stack([resize_image(image, size) for image in pixels])

    return ImageStack(read, (*size, X.shape[3]), [X.shape[1:3]] * len(X))


def _check_axes(X):
    """Refuse what is almost surely one image, or images with channels first."""
    if X.ndim == 3 and X.shape[2] <= _FEW_CHANNELS:
        raise ValueError(
            f"X has shape {X.shape}, which looks like one image (height, width, "
            "channels). Pass X[None] for one image."
        )
    if X.ndim == 4 and _has_channels_first(X.shape[1:]):
        raise ValueError(
            f"X has shape {X.shape}, which looks like channels before height and "
            "width. Channels must be last: pass np.moveaxis(X, 1, -1), or X.permute("
            "0, 2, 3, 1) of a tensor."
        )


def _has_channels_first(shape):
    return len(shape) == 3 and shape[0] <= _FEW_CHANNELS < shape[2]


def _check_one(x, i):
    """Return one image of a list as (height, width, channels)."""
    if x.ndim not in (2, 3):
        raise ValueError(
            f"image {i} has {x.ndim} dimensions. Each image of a list must be "
            "(height, width) or (height, width, channels)."
        )
    if _has_channels_first(x.shape):
        raise ValueError(
            f"image {i} has shape {x.shape}, which looks like channels before height "
            "and width. Channels must be last: pass np.moveaxis(x, 0, -1) of each."
        )
    return x if x.ndim == 3 else x[:, :, None]


def _stack_list(images, size):
    images = [_check_one(x, i) for i, x in enumerate(images)]
    names = [f"image {i}" for i in range(len(images))]
    shapes = [image.shape for image in images]
    for name, shape in zip(names, shapes, strict=True):
        if shape[2] != shapes[0][2]:
            raise ValueError(
                f"{name} has {shape[2]} channels and image 0 has {shapes[0][2]}. All "
                "images must have the same channels."
            )
    ranges = [check_scale(x, name) for x, name in zip(images, names, strict=True)]
    warn_if_not_scaled([image.dtype for image in images], ranges)
    return _stack_singly(images.__getitem__, names, shapes, size)


def _stack_files(files, size, n_channels):
    shapes = map_in_threads(read_shape, files, _N_READERS)
    if not has_bytes(files[0]):
        some = files[:: -(-len(files) // _N_LOOKED_AT)]
        images = [read_image(file) for file in some]
        ranges = [
            check_scale(x, str(file)) for x, file in zip(images, some, strict=True)
        ]
        warn_if_not_scaled([image.dtype for image in images], ranges)
    # Grey among colour becomes colour.
    n_channels = max(3 if n_channels == 3 else 1, *(shape[2] for shape in shapes))

    def load(i):
        image = read_image(files[i], size=size)
        image = image if image.ndim == 3 else image[:, :, None]
        if image.shape != _decoded_shape(before[i], image.shape):
            raise RuntimeError(
                f"{files[i]} has changed while it was read: its shape was {before[i]} "
                f"and is {image.shape}. Call again when nothing writes to the files."
            )
        return np.broadcast_to(image, (*image.shape[:2], n_channels))

    before = shapes
    shapes = [(height, width, n_channels) for height, width, _ in shapes]
    # Found again from another folder, too.
    whole = list(map(os.path.abspath, files))
    return _stack_singly(load, list(map(str, files)), shapes, size, files=whole)


def _decoded_shape(shape, found):
    """Return the shape of a file once it is decoded, at a part of its size if large."""
    if shape[0] * shape[1] <= find_max_pixels():
        return shape
    ratio = max(round(shape[0] / found[0]), 1)
    return -(-shape[0] // ratio), -(-shape[1] // ratio), shape[2]


def _stack_singly(load, names, shapes, size, files=None):
    """Stack images that are loaded one by one."""
    for name, shape in zip(names, shapes, strict=True):
        if size is None and shape != shapes[0]:
            raise ValueError(
                f"{name} has size {_times(shape)} and {names[0]} has "
                f"{_times(shapes[0])}. Pass images of one size, or image_size to "
                "have all of them resized."
            )
    size = shapes[0][:2] if size is None else _check_memory(size, shapes[0][2])
    n_pixels = max(height * width for height, width, _ in shapes)
    n_threads = 1 if files is None else max(n_pixels // _PIXELS_PER_READER, 1)

    sizes = [shape[:2] for shape in shapes]
    resizes = any(x != size for x in sizes)

    def prepare(i):
        image = to_scale(load(i))
        return image if image.shape[:2] == size else resize_image(image, size)

    def read(indices):
        indices = np.arange(len(names))[indices]
        return stack_pixels(map_in_threads(prepare, indices, n_threads, resizes))

    return ImageStack(read, (*size, shapes[0][2]), sizes, files)


def _add_axes(X):
    """Return X as (n, height, width, channels)."""
    _refuse_rows(X)
    if X.ndim == 3:
        X = X[..., None]
    if X.ndim == 4:
        return X
    raise ValueError(
        f"X has {X.ndim} dimensions. Reshape your data to (n_images, height, width) or "
        "(n_images, height, width, n_channels)."
    )


def _refuse_rows(X):
    if X.ndim == 2:
        raise ValueError(
            f"X has shape {X.shape}, one row for each image. Reshape it to (n_images, "
            "height, width[, n_channels]); one grey image is X[None]. In a Pipeline "
            "whose steps give rows, put FunctionTransformer(to_images) before the "
            "estimator, with a function to_images(X) that returns X.reshape(len(X), "
            "height, width[, n_channels])."
        )


def _are_positive_integers(values, lengths):
    if not isinstance(values, list | tuple | np.ndarray):
        return False
    if getattr(values, "ndim", 1) != 1 or len(values) not in lengths:
        return False
    return all(
        isinstance(v, Integral) and not isinstance(v, bool) and v > 0 for v in values
    )


def _times(size):
    return f"{size[0]} x {size[1]}"
