"""What users pass as images, made an array or a list: one function for all of it."""

import os
import reprlib
from collections.abc import Iterator, Mapping, Set
from numbers import Number

import numpy as np
import torch

from skpatchsvdd._images.files import is_pillow_image, read_pillow_image
from skpatchsvdd._utils import check_array, check_mapped


def as_images(X):
    """Return whatever holds images as one array, or as a list of arrays or of paths.

    Every function that takes images begins with this one, so that all take the same:
    an array or what can be made one, a tensor, a table of numbers; a list, a column or
    a table of one column with single images or with paths of files. What comes as it
    is, is not copied; files are not looked at.
    """
    if X is None or isinstance(X, Number | Mapping | Set | Iterator):
        raise _not_images(X)
    if is_path(X) or is_pillow_image(X):
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
            return [_check_image(x, i) for i, x in enumerate(X)]
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


def is_path(x):
    """Whether something names a file."""
    return isinstance(x, str | os.PathLike)


def _is_image(x):
    return x is None or is_path(x) or _n_axes(x) >= 2


def _n_axes(x):
    try:
        return 2 if is_pillow_image(x) else np.ndim(x)
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


def _check_image(x, i):
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
    elif is_pillow_image(x):
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
    try:
        return check_array(
            x,
            dtype="numeric",
            allow_nd=True,
            ensure_2d=False,
            ensure_all_finite=False,
            ensure_min_samples=0,
            ensure_min_features=0,
            input_name=name,
        )
    except (TypeError, ValueError) as error:
        known = TypeError if isinstance(error, TypeError) else ValueError
        raise known(
            f"{name} cannot be read as an array of numbers: {_end(error)} Pass images "
            "as arrays, or a list of paths of image files."
        ) from error


def _end(error):
    return f"{str(error).rstrip('.')}."
