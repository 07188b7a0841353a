"""Images in any accepted form, checked and stacked."""

import os
from collections.abc import Iterator, Mapping, Set
from numbers import Integral, Number

import numpy as np
from sklearn.utils import check_array

from skpatchsvdd._images.files import read_image, read_shape
from skpatchsvdd._images.stack import ImageStack, pixels_to_float, resize_image
from skpatchsvdd._utils import warn

# Floats beyond this are hardly on the 0..1 scale.
_LOOKS_LIKE_BYTES = 10.0
# 16-bit integers between these, at their highest, hardly have 16 bits.
_EIGHT_BITS, _TWELVE_BITS = 255, 4095
# No image has so few rows: an axis this short holds channels.

_FEW_CHANNELS = 4


def check_images(X, *, image_shape=None, image_size=None, n_channels=1):
    """Check images in any accepted form and return them as one stack.

    Parameters
    ----------
    X : array-like or list
        Arrays (n, height, width) or (n, height, width, channels), rows (n, features)
        with `image_shape`, or a list of single images or of paths of image files.
        Neither an array that is mapped into memory nor files are read as a whole.
    image_shape : tuple or None
        How to read rows.
    image_size : int, pair or None
        Size to which every image is resized.
    n_channels : int
        Channels of files, at least: grey ones become colour.

    Returns
    -------
    images : ImageStack
    """
    size = check_image_size(image_size)
    if X is None or isinstance(X, Number | Mapping | Set | Iterator):
        raise ValueError(
            "X must be an array of images of shape (n_images, height, width) or "
            "(n_images, height, width, n_channels), or a list of images or of paths "
            f"of image files, got {type(X).__name__}."
        )
    if _is_path(X):
        raise ValueError(
            f"X is {X!r}. Pass a list of paths to have files read, or what "
            "skpatchsvdd.datasets.load_mvtec_ad returns for a folder."
        )
    X = _as_list_of_paths(X)
    if _is_list_of_pairs(X):
        raise ValueError(
            "X is a list of pairs, such as (image, label). Pass the images alone: "
            "[image for image, _ in X]."
        )
    if _is_list_of_paths(X):
        return _stack_files(X, size, n_channels)
    if _is_list_of_images(X):
        return _stack_list([_check_one(x, i) for i, x in enumerate(X)], size)
    return _stack_array(X, image_shape, size)


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


def _stack_array(X, image_shape, size):
    X = check_array(X, dtype="numeric", allow_nd=True, ensure_2d=False, input_name="X")
    _check_swapped(X, "X")
    _check_axes(X)
    X = _add_axes(X, image_shape)
    _check_scale(X.dtype, "X")
    _warn_if_not_scaled([X])
    size = X.shape[1:3] if size is None else size

    def read(indices):
        pixels = _scale(X[indices])
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
    if X.ndim == 4 and X.shape[1] <= _FEW_CHANNELS < X.shape[3]:
        raise ValueError(
            f"X has shape {X.shape}, which looks like channels before height and "
            "width. Pass X.transpose(0, 2, 3, 1)."
        )


def _as_list_of_paths(X):
    """Return a column of a table, or an array, of paths as a list; else X itself."""
    column = X.to_numpy() if hasattr(X, "to_numpy") else X
    if not isinstance(column, np.ndarray) or column.ndim != 1:
        return X
    return column.tolist() if column.dtype.kind in "OU" else X


def _is_list_of_pairs(X):
    if not isinstance(X, list | tuple) or len(X) == 0:
        return False
    return all(
        isinstance(x, tuple) and len(x) == 2 and np.ndim(x[0]) >= 2 > np.ndim(x[1])
        for x in X
    )


def _is_list_of_paths(X):
    if not isinstance(X, list | tuple) or len(X) == 0:
        return False
    return all(map(_is_path, X))


def _is_path(x):
    return isinstance(x, str | os.PathLike)


def _is_list_of_images(X):
    if not isinstance(X, list | tuple) or len(X) == 0:
        return False
    # Nested lists of numbers are one array written out.
    return all(_is_image(x) for x in X) and not isinstance(X[0], list | tuple)


def _is_image(x):
    return x is None or _is_path(x) or np.ndim(x) >= 2


def _check_one(x, i):
    """Return one image of a list as (height, width, channels)."""
    if x is None or _is_path(x):
        raise ValueError(
            f"image {i} is {x!r}, not an array. Pass a list of arrays, or a list of "
            "paths."
        )
    x = check_array(x, dtype="numeric", allow_nd=True, input_name=f"image {i}")
    _check_swapped(x, f"image {i}")
    if x.ndim > 3:
        raise ValueError(
            f"image {i} has {x.ndim} dimensions. Each image of a list must be "
            "(height, width) or (height, width, channels)."
        )
    _check_scale(x.dtype, f"image {i}")
    return x if x.ndim == 3 else x[:, :, None]


def _stack_list(images, size):
    names = [f"image {i}" for i in range(len(images))]
    shapes = [image.shape for image in images]
    for name, shape in zip(names, shapes, strict=True):
        if shape[2] != shapes[0][2]:
            raise ValueError(
                f"{name} has {shape[2]} channels and image 0 has {shapes[0][2]}. All "
                "images must have the same channels."
            )
    _warn_if_not_scaled(images)
    return _stack_singly(images.__getitem__, names, shapes, size)


def _stack_files(files, size, n_channels):
    shapes = [read_shape(file) for file in files]
    # Grey among colour becomes colour.
    n_channels = max(3 if n_channels == 3 else 1, *(shape[2] for shape in shapes))

    def load(i):
        image = read_image(files[i])
        image = image if image.ndim == 3 else image[:, :, None]
        return np.broadcast_to(image, (*image.shape[:2], n_channels))

    shapes = [(height, width, n_channels) for height, width, _ in shapes]
    # Found again from another folder, too.
    whole = list(map(os.path.abspath, files))
    return _stack_singly(load, list(map(str, files)), shapes, size, files=whole)


def _stack_singly(load, names, shapes, size, files=None):
    """Stack images that are loaded one by one."""
    for name, shape in zip(names, shapes, strict=True):
        if size is None and shape != shapes[0]:
            raise ValueError(
                f"{name} has size {_times(shape)} and {names[0]} has "
                f"{_times(shapes[0])}. Pass images of one size, or image_size to "
                "have all of them resized."
            )
    size = shapes[0][:2] if size is None else size

    def read(indices):
        images = [_scale(load(i)) for i in np.arange(len(names))[indices]]
        images = [x if x.shape[:2] == size else resize_image(x, size) for x in images]
        if len({image.dtype for image in images}) > 1:
            images = [pixels_to_float(image) for image in images]
        return np.stack(images)

    sizes = [shape[:2] for shape in shapes]
    return ImageStack(read, (*size, shapes[0][2]), sizes, files)


def _add_axes(X, image_shape):
    """Return X as (n, height, width, channels)."""
    if X.ndim == 2:
        X = _read_rows(X, image_shape)
    if X.ndim == 3:
        X = X[..., None]
    if X.ndim == 4:
        return X
    raise ValueError(
        f"X has {X.ndim} dimensions. Reshape your data to (n_images, height, width), "
        "(n_images, height, width, n_channels), or to rows (n_images, n_features) "
        "together with image_shape."
    )


def _read_rows(X, image_shape):
    if image_shape is None:
        raise ValueError(
            f"X has shape {X.shape}, one row for each image. Pass image_shape=(height, "
            "width) or (height, width, channels) to say how to read a row, or pass X "
            "as (n_images, height, width[, n_channels]); one grey image is X[None]."
        )
    if not _are_positive_integers(image_shape, lengths=(2, 3)):
        raise ValueError(
            "image_shape must be None, (height, width) or (height, width, channels) in "
            f"positive integers, got {image_shape!r}."
        )
    if X.shape[1] != np.prod(image_shape):
        raise ValueError(
            f"X has {X.shape[1]} features, but image_shape={tuple(image_shape)} "
            f"makes {np.prod(image_shape)}."
        )
    return X.reshape(len(X), *image_shape)


def _check_swapped(x, name):
    """Check floats of another order of bytes, as scikit-learn 1.6 does not."""
    is_swapped = x.dtype.kind == "f" and not x.dtype.isnative
    if is_swapped and not np.isfinite(x.sum()):
        raise ValueError(f"Input {name} contains NaN or infinity.")


def _check_scale(dtype, name):
    is_known = dtype.kind in "bf" or (dtype.kind == "u" and dtype.itemsize <= 2)
    if not is_known:
        raise ValueError(
            f"{name} has dtype {dtype}, whose scale is unknown. Pass uint8 "
            "(0..255), uint16 (0..65535) or floats (0..1)."
        )


def _scale(pixels):
    """Bring pixels to uint8 or to float32 on the 0..1 scale."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "u":
        return np.divide(pixels, 65535, dtype=np.float32)
    return pixels.astype(np.float32, copy=False)


def _warn_if_not_scaled(arrays):
    if all(x.dtype == np.uint16 for x in arrays):
        highest = max(int(x.max()) for x in arrays)
        if _EIGHT_BITS < highest <= _TWELVE_BITS:
            warn(
                f"X holds 16-bit integers up to {highest}, which are taken for nearly "
                "black: 65535 is white. Multiply 12-bit pixels by 16, 10-bit ones by "
                "64, or divide by what is white to get floats of 0..1.",
            )
        return
    if any(x.dtype.kind != "f" or x.min() < 0 for x in arrays):
        return
    highest = max(x.max() for x in arrays)
    if highest > _LOOKS_LIKE_BYTES:
        warn(
            f"X holds floats up to {highest:g}, which look like 0..255 but are "
            "taken as they are. Divide them by 255, or pass uint8.",
        )


def _are_positive_integers(values, lengths):
    if not isinstance(values, list | tuple | np.ndarray) or len(values) not in lengths:
        return False
    return all(isinstance(v, Integral) and v > 0 for v in values)


def _times(size):
    return f"{size[0]} x {size[1]}"
