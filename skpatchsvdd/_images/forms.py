"""What is nearly an array, made one: tensors, pillow's images, masked arrays, lists."""

import numpy as np
import torch

from skpatchsvdd._images.files import is_pillow_image, read_pillow_image
from skpatchsvdd._utils import check_array


def as_array(x, name):
    """Return what holds numbers as a plain array of numbers, or say why it cannot be.

    Parameters
    ----------
    x : object
        An array or what can be made one, a tensor on any device, one of pillow's
        images, a table.
    name : str
        What messages call it.

    Returns
    -------
    array : ndarray
        Of numbers or booleans, of any shape that holds at least one.
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
            f"{name} has dtype {dtype}, which are no numbers. Pass images as numbers, "
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
