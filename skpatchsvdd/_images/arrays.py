"""Images in any accepted form, checked and stacked."""

import math
from numbers import Integral

import numpy as np

from skpatchsvdd._images.files import ImageFileError, has_bytes, read_image, read_shape
from skpatchsvdd._images.forms import as_images, is_path
from skpatchsvdd._images.scale import check_scales
from skpatchsvdd._images.stack import ImageStack
from skpatchsvdd._utils import map_in_threads, memory_size

# No image has so few rows: an axis this short holds channels.
_FEW_CHANNELS = 4
# Threads that read the sizes of files, which is done in Python but for the disk.
_N_READERS = 4
# Arrays of floats of an image's size, at least, while one is inspected: as it was
# resized, as it is encoded, its light taken out, and its map.
_N_COPIES = 4
# Files, at most, whose scale is looked at.
_N_LOOKED_AT = 8


def check_images(X, *, image_size=None, n_channels=1):
    """Check images in any accepted form and return them as one `ImageStack`.

    Neither an array that is mapped into memory nor files are read as a whole. With an
    `image_size` every image is resized. Files have `n_channels` at least: grey ones
    become colour.
    """
    size = check_image_size(image_size)
    X, least = as_images(X), 1
    if isinstance(X, np.ndarray):
        X = _check_array(X)
        shapes = [X.shape[1:]] * len(X)
    elif is_path(X[0]):
        shapes = _check_files(X)
        least = 3 if n_channels == 3 else 1  # grey among colour becomes colour
    else:
        X = _check_list(X)
        shapes = [x.shape for x in X]
    n_channels = max(least, *(shape[2] for shape in shapes))
    if size is None:
        _check_one_size(X, shapes)
        size = shapes[0][:2]
    else:
        _check_memory(size, n_channels)
    return ImageStack(X, shapes, (*size, n_channels))


def list_images(X):
    """Return images as an array, or a list of arrays or paths: each element is one."""
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
    is_list = isinstance(image_size, list | tuple | np.ndarray)
    is_pair = is_list and getattr(image_size, "ndim", 1) == 1 and len(image_size) == 2
    if not is_pair or not all(map(_is_positive_integer, image_size)):
        raise ValueError(
            "image_size must be None, a positive integer or a pair (height, width) of "
            f"positive integers, got {image_size!r}."
        )
    return tuple(int(length) for length in image_size)


def _is_positive_integer(x):
    return isinstance(x, Integral) and not isinstance(x, bool) and x > 0


def _check_array(X):
    """Return an array of images as (n, height, width, channels)."""
    _refuse_rows(X)
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
    if X.ndim not in (3, 4):
        raise ValueError(
            f"X has {X.ndim} dimensions. Reshape your data to (n_images, height, "
            "width) or (n_images, height, width, n_channels)."
        )
    X = X if X.ndim == 4 else X[..., None]
    check_scales([X], ["X"])
    return X


def _refuse_rows(X):
    if X.ndim == 2:
        raise ValueError(
            f"X has shape {X.shape}, one row for each image. Reshape it to (n_images, "
            "height, width[, n_channels]); one grey image is X[None]. In a Pipeline "
            "whose steps give rows, put FunctionTransformer(to_images) before the "
            "estimator, with a function to_images(X) that returns X.reshape(len(X), "
            "height, width[, n_channels])."
        )


def _has_channels_first(shape):
    return len(shape) == 3 and shape[0] <= _FEW_CHANNELS < shape[2]


def _check_list(images):
    """Return a list of images, each as (height, width, channels)."""
    images = [_check_one(x, i) for i, x in enumerate(images)]
    n_channels = images[0].shape[2]
    for i, image in enumerate(images):
        if image.shape[2] != n_channels:
            raise ValueError(
                f"image {i} has {image.shape[2]} channels and image 0 has "
                f"{n_channels}. All images must have the same channels."
            )
    check_scales(images, [f"image {i}" for i in range(len(images))])
    return images


def _check_one(x, i):
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


def _check_files(files):
    """Return the shapes of files; only where these are no bytes, some are read."""
    shapes = map_in_threads(read_shape, files, _N_READERS)
    if not has_bytes(files[0]):
        chosen = files[:: -(-len(files) // _N_LOOKED_AT)]
        images = [read_image(file) for file in chosen]
        try:
            check_scales(images, chosen)
        except ValueError as error:
            raise ImageFileError(str(error)) from error
    return shapes


def _check_one_size(X, shapes):
    height, width = shapes[0][:2]
    for i, shape in enumerate(shapes):
        if shape[:2] != (height, width):
            name, first = (X[k] if is_path(X[k]) else f"image {k}" for k in (i, 0))
            raise ValueError(
                f"{name} has size {shape[0]} x {shape[1]} and {first} has {height} x "
                f"{width}. Pass images of one size, or image_size to have all of them "
                "resized."
            )


def _check_memory(size, n_channels):
    """Raise if a single image of a size would not fit into memory."""
    n_bytes, there = _N_COPIES * 4 * math.prod(size) * n_channels, memory_size()
    if there is not None and n_bytes > there:
        raise ValueError(
            f"image_size={size} makes images that take {n_bytes / 2**30:,.1f} GiB each "
            f"while they are inspected, and there are {there / 2**30:,.1f} GiB of "
            "memory. Pass a smaller image_size."
        )
