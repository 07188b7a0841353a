"""A user's module tried on two images, and what does not fit said before any work."""

import copy

import torch
from torch import nn

from skpatchsvdd._encoding.base import weights_digest
from skpatchsvdd._utils import exact_convolutions

# How much features of an image may change with the images beside it, or from one call
# to the next, as a fraction of the largest: roundings do less.
_SAME = 0.01
# Numbers of a feature, at most: main axes are found of matrices of this size.
_MOST_CHANNELS = 8192


def copy_frozen(module):
    """Return a deep copy on the CPU, in evaluation mode, whose weights stay."""
    who = _name(module)
    tensors = [*module.parameters(), *module.buffers()]
    lazy = nn.parameter.UninitializedTensorMixin
    if any(isinstance(x, lazy) or x.device.type == "meta" for x in tensors):
        raise ValueError(
            f"{who} has weights that are not initialised yet, or on the meta device. "
            "Load its weights, or run it once on images of this shape, before fit."
        )
    devices = sorted({str(x.device) for x in tensors})
    if len(devices) > 1:
        raise ValueError(
            f"{who} has weights on several devices, {', '.join(devices)}. Pass "
            "module.to('cpu'): fit moves a copy to the estimator's device."
        )
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        raise ValueError(
            f"{who} cannot be copied: {type(error).__name__}: {error}. fit works on a "
            "deep copy: let it hold layers and tensors without a history alone."
        ) from error
    copied = copied.to("cpu").requires_grad_(False).eval()
    if any(x.training for x in copied.modules()):
        raise ValueError(
            f"{who} stays in training mode after eval(), so that its features may "
            "change from call to call. Let eval() reach all of its modules."
        )
    return copied


def try_module(module, images):
    """Run a module on two images; return the maps of both, or say what does not fit.

    The module is one that `copy_frozen` has returned, on the device of the images,
    (2, n_channels, height, width) in 0..1. Maps are (2, length, rows, cols).
    """
    who, given = _name(module), images.clone()
    before = weights_digest(module)
    maps = run_module(module, given)
    if not torch.equal(given, images):
        raise ValueError(
            f"{who} changes the images it is given. Let it work on a copy: begin "
            "forward with x = x.clone()."
        )
    if not _are_same(maps, run_module(module, images)):
        raise ValueError(
            f"{who} gives other features for the same images when it is called again. "
            "In evaluation mode nothing in it may be random or count calls."
        )
    if not _are_same([x[:1] for x in maps], run_module(module, images[:1])):
        raise ValueError(
            f"{who} gives other features for an image if there is another one beside "
            "it. Normalise by stored statistics, not by those of a batch."
        )
    if weights_digest(module) != before:
        raise ValueError(
            f"{who} changes its own weights or buffers when it is called in evaluation "
            "mode. Update them in training mode alone."
        )
    return maps


def run_module(module, images):
    """Return the maps that a module makes of images, float32, or say what is wrong."""
    who, shape = _name(module), tuple(images.shape)
    try:
        with torch.inference_mode(), exact_convolutions(images.device):
            found = module(images)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(
            f"{who} fails on images of shape {shape}, which are (n, channels, height, "
            f"width) in 0..1, float32: {type(error).__name__}: {error}"
        ) from error
    maps = [found] if isinstance(found, torch.Tensor) else found
    if not isinstance(maps, list | tuple) or not maps:
        raise ValueError(
            f"{who} must return a feature map, or a list of them, of shape (n, length, "
            f"rows, cols); it returns a {type(found).__name__}. "
            "skpatchsvdd.encoders.Stages takes the outputs of layers by their names."
        )
    return [_check_map(who, i, x, images) for i, x in enumerate(maps)]


def _check_map(who, i, x, images):
    """Return a feature map as float32 if it is one."""
    what = f"{who} must return feature maps of shape (n, length, rows, cols); map {i}"
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{what} is a {type(x).__name__}.")
    if x.ndim != 4:
        way_out = "; skpatchsvdd.encoders.Tokens makes maps of tokens"
        raise ValueError(
            f"{what} has shape {tuple(x.shape)}{way_out if x.ndim == 3 else ''}."
        )
    if len(x) != len(images):
        raise ValueError(f"{what} is of {len(x)} images, for {len(images)}.")
    if not x.dtype.is_floating_point:
        raise ValueError(f"{what} is of {x.dtype}, not of floating point numbers.")
    if x.device != images.device:
        raise ValueError(
            f"{what} is on {x.device}, and the images on {images.device}. Register "
            "tensors it uses as parameters or buffers, which move with it."
        )
    n_numbers, rows, cols = x.shape[1:]
    if not 1 <= n_numbers <= _MOST_CHANNELS:
        raise ValueError(
            f"{what} has features of {n_numbers} numbers; 1 to {_MOST_CHANNELS} are "
            "possible."
        )
    if rows * cols < 2:
        height, width = images.shape[2:]
        raise ValueError(
            f"{what} has {rows} x {cols} cells for images of {height} x {width}: it "
            "does not say where things are. Take an earlier layer, or larger images, "
            "which image_size makes."
        )
    if not torch.isfinite(x).all():
        raise ValueError(f"{what} holds NaN or infinite numbers.")
    return x.float()


def _are_same(maps, others):
    """Whether maps differ by roundings alone."""
    return [x.shape for x in maps] == [x.shape for x in others] and all(
        float((x - other).abs().max()) <= _SAME * float(x.abs().max())
        for x, other in zip(maps, others, strict=True)
    )


def _name(module):
    return f"encoder {type(module).__name__}"
