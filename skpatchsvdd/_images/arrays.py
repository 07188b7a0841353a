"""Images in any accepted form: read, checked and stacked, or made to look at."""

import math
import reprlib
import sys
from collections.abc import Iterator, Mapping, Set
from numbers import Integral, Number

import numpy as np
import torch

from skpatchsvdd._images.files import (
    ImageFileError,
    has_bytes,
    read_image,
    read_pillow_image,
    read_shape,
    read_small,
)
from skpatchsvdd._images.stack import ImageStack, is_path
from skpatchsvdd._utils import (
    check_array,
    check_mapped,
    map_in_threads,
    memory_size,
    warn,
)

# No image has so few rows: an axis this short holds channels.
_FEW_CHANNELS = 4
# Threads that read the sizes of files, which is done in Python but for the disk.
_N_READERS = 4
# Arrays of floats of an image's size, at least, while one is inspected: as it was
# resized, as it is encoded, its light taken out, and its map.
_N_COPIES = 4
# Full resolution, as an image size, and about how many pixels coarse scales then see.
FULL, COARSE_PIXELS = "full", 576 * 768
# Files, at most, whose scale is looked at.
_N_LOOKED_AT = 8
# Floats of 0..1 can go a little below 0 by resizing; far above 1 they are hardly on
# that scale, and beyond the last of these on no scale at all.
_NEGATIVE, _BEYOND_UNIT, _NO_PIXEL = -0.1, 10.0, 1e6
# 16-bit integers up to this, at their highest, hardly have 16 bits.
_TWELVE_BITS = 4095


def check_images(X, *, image_size=None, n_channels=1, reduction=1):
    """Check images in any accepted form and return them as one `ImageStack`.

    Neither an array that is mapped into memory nor files are read as a whole. With an
    `image_size` every image is resized, and read at `reduction` times that size;
    `FULL` finds both for images of one size. Files have `n_channels` at least: grey
    ones become colour.
    """
    is_full = isinstance(image_size, str) and image_size == FULL
    size = None if is_full else check_image_size(image_size)
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
        if is_full:
            size, reduction = _find_reduction(size)
    else:
        _check_memory(tuple(reduction * length for length in size), n_channels)
    return ImageStack(X, shapes, (*size, n_channels), reduction=reduction)


def _find_reduction(size):
    """Return the size at which coarse scales see images, and by how much it is less."""
    reduction = max(round(math.sqrt(math.prod(size) / COARSE_PIXELS)), 1)
    return tuple(round(length / reduction) for length in size), reduction


def check_image_size(image_size):
    """Return `image_size` as (height, width) or None."""
    if image_size is None:
        return None
    if isinstance(image_size, Integral):
        image_size = (image_size, image_size)
    is_list = isinstance(image_size, list | tuple | np.ndarray)
    is_pair = is_list and getattr(image_size, "ndim", 1) == 1 and len(image_size) == 2
    if not is_pair or not all(
        isinstance(x, Integral) and not isinstance(x, bool) and x > 0
        for x in image_size
    ):
        raise ValueError(
            "image_size must be None, a positive integer or a pair (height, width) of "
            f"positive integers, got {image_size!r}."
        )
    return tuple(int(length) for length in image_size)


def list_images(X):
    """Return images as an array, or a list of arrays or paths: each element is one."""
    X = as_images(X)
    if isinstance(X, np.ndarray):
        _refuse_rows(X)
    return X


def as_images(X):
    """Return whatever holds images as one array, or as a list of arrays or of paths.

    Every function that takes images begins with this one: an array or what can be made
    one, a tensor, a table of numbers; a list, a column or a table of one column with
    single images or paths of files. Nothing is copied without need, no file looked at.
    """
    if X is None or isinstance(X, Number | Mapping | Set | Iterator):
        raise _not_images(X)
    if is_path(X) or _is_pillow_image(X):
        raise ValueError(
            f"X is {X!r}. Pass a list of paths or of images; for a folder, what "
            "skpatchsvdd.datasets.load_images finds in it."
        )
    X = _as_list(X)
    if isinstance(X, list | tuple) and len(X) > 0:
        if all(map(_is_pair, X)):
            raise ValueError(
                "X is a list of pairs, such as (image, label). Pass the images alone: "
                "[image for image, _ in X]."
            )
        if is_path(X[0]):
            return _check_paths(X)
        # Nested lists of numbers are one array written out.
        if not isinstance(X[0], list | tuple) and any(map(_is_image, X)):
            return [_as_image(x, i) for i, x in enumerate(X)]
    if isinstance(X, np.ndarray):
        check_mapped(X, "X")
    array = as_array(X, "X")
    if array.ndim == 0:
        raise _not_images(X)
    return array


def _not_images(X):
    return ValueError(
        "X must be an array of images of shape (n_images, height, width) or "
        "(n_images, height, width, n_channels), or a list of images or of paths "
        f"of image files, got {type(X).__name__}."
    )


def _as_list(X):
    """Return a column of a table, or an array, of objects as a list; else X itself."""
    column = X.to_numpy() if hasattr(X, "to_numpy") else X
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "OUT":
        return X
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    return column.tolist() if column.ndim == 1 else X


def _is_pair(x):
    is_pair = isinstance(x, tuple) and len(x) == 2
    return is_pair and _n_axes(x[0]) >= 2 > _n_axes(x[1])


def _is_image(x):
    return x is None or is_path(x) or _n_axes(x) >= 2


def _is_pillow_image(x):
    # Pillow need not be there, or another thread may be importing it just now.
    return isinstance(x, getattr(sys.modules.get("PIL.Image"), "Image", ()))


def _n_axes(x):
    try:
        return 2 if _is_pillow_image(x) else np.ndim(x)
    except ValueError:  # a list of lists of unequal length
        return 2


def _check_paths(X):
    for i, x in enumerate(X):
        if not is_path(x):
            raise ValueError(
                f"image {i} is {reprlib.repr(x)}, and image 0 is a path. Pass a list "
                "of paths, with no value missing, or a list of arrays."
            )
    return list(X)


def _as_image(x, i):
    if x is None or is_path(x):
        raise ValueError(
            f"image {i} is {x!r}, not an array. Pass a list of arrays, or a list of "
            "paths."
        )
    return as_array(x, f"image {i}")


def as_array(x, name):
    """Return an array, tensor, table or one of pillow's images as a plain array.

    Of numbers or booleans, of any shape that holds at least one; or raise, by a `name`.
    """
    if isinstance(x, torch.Tensor):
        x = _read_tensor(x, name)
    elif _is_pillow_image(x):
        x = read_pillow_image(x, name)
    array = _make_numeric(check_unmasked(x, name), name)
    if array.size == 0:
        raise ValueError(
            f"{name} has shape {array.shape}: 0 sample(s), or images without a pixel. "
            "Pass at least one image."
        )
    return array


def check_unmasked(x, name):
    """Return an array that hides nothing as it is, and refuse one that does."""
    if not isinstance(x, np.ma.MaskedArray):
        return x
    n_hidden = np.ma.count_masked(x)
    if n_hidden:
        raise ValueError(
            f"{name} is a masked array that hides {n_hidden} values. Pass "
            "PatchSVDD(roi=...) for pixels that never matter; fill others, by "
            ".filled(0) for instance, or leave them out."
        )
    return x.data


def _read_tensor(x, name):
    try:
        return x.numpy(force=True)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise TypeError(
            f"{name} is a tensor that cannot be made an array: {_end(error)} Pass a "
            "dense tensor of uint8 or float32, such as X.float()."
        ) from error


def _make_numeric(x, name):
    dtype = getattr(x, "dtype", None)
    kind = dtype.kind if isinstance(dtype, np.dtype) else "O"
    if kind == "c":
        raise ValueError(
            f"Complex data not supported: {name} has dtype {dtype}. Pass its real "
            "part, or its absolute values."
        )
    if kind in "SUTV":
        raise ValueError(
            f"{name} has dtype {dtype}, which are not numbers. Pass images as numbers, "
            "or a list of paths of image files."
        )
    options = dict(allow_nd=True, ensure_2d=False, ensure_all_finite=False)
    options |= dict(ensure_min_samples=0, ensure_min_features=0)
    try:
        return check_array(x, dtype="numeric", input_name=name, **options)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"{name} cannot be read as an array of numbers: {_end(error)} Pass images "
            "as arrays, or a list of paths of image files."
        ) from error


def _end(error):
    return f"{str(error).rstrip('.')}."


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
    _check_scales([X], ["X"])
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
    _check_scales(images, [f"image {i}" for i in range(len(images))])
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
            _check_scales(images, chosen)
        except ValueError as error:
            raise ImageFileError(str(error)) from error
    return shapes


def _check_scales(images, names):
    """Raise if images are on no known scale, warn if they look as if on another.

    Bytes and booleans are always on theirs, and are not looked at.
    """
    values = {"u": [], "f": []}  # the lowest and highest of images, by kind of dtype
    for pixels, name in zip(images, names, strict=True):
        if pixels.dtype != np.uint8 and pixels.dtype.kind != "b":
            values.get(pixels.dtype.kind, []).extend(_find_range(pixels, str(name)))
    if values["u"] and 0 < max(values["u"]) <= _TWELVE_BITS:  # 0 is black on any scale
        warn(
            f"X holds 16-bit integers up to {max(values['u']):g}, which are taken for "
            "nearly black: 65535 is white. Pass X.astype(np.uint8) if white is 255, or "
            "divide by what is white to get floats of 0..1.",
        )
    if values["f"]:
        _warn_if_not_unit(min(values["f"]), max(values["f"]))


def _find_range(pixels, name):
    """Return the lowest and highest value of pixels, or raise if they have no scale."""
    is_float = pixels.dtype.kind == "f"
    if not is_float and (pixels.dtype.kind, pixels.dtype.itemsize) != ("u", 2):
        raise ValueError(
            f"{name} has dtype {pixels.dtype}, whose scale is unknown. Pass uint8 "
            "by .astype(np.uint8) if white is 255, uint16 if white is 65535, or divide "
            "by what is white to get floats of 0..1."
        )
    lowest, highest = float(pixels.min()), float(pixels.max())
    if not np.isfinite([lowest, highest]).all():
        kind = "NaN" if np.isnan(lowest) else "infinity"
        first = ""
        if name == "X":
            is_bad = ~np.isfinite(pixels).reshape(len(pixels), -1).all(axis=1)
            first = f", first in image {int(is_bad.argmax())}"
        raise ValueError(
            f"Input {name} contains {kind}{first}. Fill in such pixels, or leave out "
            "the images that hold them."
        )
    if is_float and max(-lowest, highest) > _NO_PIXEL:
        raise ValueError(
            f"{name} holds floats from {lowest:g} to {highest:g}, which are pixels on "
            "no scale. Divide them by what is white to get floats of 0..1."
        )
    return lowest, highest


def _warn_if_not_unit(lowest, highest):
    if lowest < _NEGATIVE:
        warn(
            f"X holds floats from {lowest:g} to {highest:g}, which are taken as they "
            "are, though 0 is black and 1 is white. If they were standardized, pass "
            "them as they were before; else shift and divide them to get about 0..1.",
        )
    elif highest > _BEYOND_UNIT:
        warn(
            f"X holds floats up to {highest:g}, which are taken as they are, though 1 "
            "is white. Divide them by what is white, such as 255, to get about 0..1.",
        )


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


def read_display(image, size=None):
    """Return an image, or that of a path, as bytes to look at: (height, width, 3).

    If its longest side is more than `size` it is made smaller, and a file decoded at a
    part of its size where the format can. None keeps all pixels.
    """
    if is_path(image):
        image = read_image(image) if size is None else read_small(image, size)
    image = as_array(image, "the image")
    image = image if image.ndim == 3 else image[:, :, None]
    if image.shape[2] not in (1, 3):  # the first of more channels, or of two
        image = image[:, :, :3] if image.shape[2] > 3 else image[:, :, :1]
    if image.dtype != np.uint8:
        top = np.float32(65535 if image.dtype.kind == "u" else 1)
        image = (np.clip(image / top, 0, 1) * 255).astype(np.uint8)
    if size is not None and max(image.shape[:2]) > size:
        image = _shrink(image, size)
    return np.broadcast_to(image, (*image.shape[:2], 3))


def _shrink(image, size):
    from PIL import Image

    pixels = image[:, :, 0] if image.shape[2] == 1 else image
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((size, size))
    return np.asarray(picture).reshape(picture.height, picture.width, -1)
