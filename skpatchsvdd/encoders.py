"""Networks of your own as encoders: what makes feature maps of them.

``PatchSVDD(encoder=module)`` takes any torch module that maps images, (n, channels,
height, width) in 0..1, to a feature map (n, length, rows, cols) or a list of them. What
is here makes such modules of models that give something else. Models and weights are
yours: nothing is downloaded.
"""

from contextlib import ExitStack, suppress
from functools import partial

import numpy as np
import torch
from torch import nn

from skpatchsvdd._utils import make_lock

__all__ = [
    "Function",
    "Normalized",
    "Stages",
    "Tokens",
    "from_timm",
    "from_torchvision",
]

# Mean and deviation of ImageNet's channels, with which most models were trained.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Hooks of a module are those of all threads: one at a time has them.
_HOOKING = make_lock()


class Normalized(nn.Module):
    """A module that is given images less a mean, divided by a deviation.

    Parameters
    ----------
    module : torch.nn.Module
        What follows.
    mean, std : float or sequence of float
        For each channel, on the 0..1 scale. By default those of ImageNet. Grey images
        become as many equal channels as there are numbers.

    Examples
    --------
    >>> import torch
    >>> from skpatchsvdd.encoders import Normalized
    >>> module = Normalized(torch.nn.Identity(), mean=0.5, std=0.25)
    >>> float(module(torch.ones(1, 3, 8, 8)).max())
    2.0
    """

    def __init__(self, module, mean=_MEAN, std=_STD):
        super().__init__()
        self.module = module
        mean, std = (np.array(x, dtype=np.float32, ndmin=1) for x in (mean, std))
        if mean.ndim != 1 or std.ndim != 1 or not (std > 0).all():
            raise ValueError(
                "mean and std must be numbers, or one for each channel, and std above "
                f"0, got {mean.tolist()} and {std.tolist()}."
            )
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.from_numpy(values)[:, None, None])

    def forward(self, images):
        """Return what the module makes of normalised images."""
        return self.module((images - self.mean) / self.std)


class Stages(nn.Module):
    """The outputs of some layers of a model, by their names.

    The model runs up to the last of them, and not further. If a layer is called several
    times, its first output is taken.

    Parameters
    ----------
    module : torch.nn.Module
        The model.
    names : str or list of str
        Names of layers, as ``module.named_modules()`` has them, such as "layer2".

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from skpatchsvdd.encoders import Stages
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.ReLU(), nn.Conv2d(4, 8, 2, 2))
    >>> [tuple(x.shape) for x in Stages(model, ["1", "2"])(torch.rand(1, 3, 16, 16))]
    [(1, 4, 8, 8), (1, 8, 4, 4)]
    """

    def __init__(self, module, names):
        super().__init__()
        self.module = module
        self.names = [names] if isinstance(names, str) else list(names)
        layers = [name for name, _ in module.named_modules() if name]
        missing = [x for x in self.names if x not in layers]
        if missing or not self.names:
            raise ValueError(
                f"names must be layers of {type(module).__name__}, such as "
                f"{layers[:8]}, got {names!r}."
            )

    def forward(self, images):
        """Return the outputs of the layers, in the order of their names."""
        found = {}

        def keep(name, _module, _input, output):
            found.setdefault(name, output)
            if len(found) == len(set(self.names)):
                raise _AllFoundError

        with _HOOKING, ExitStack() as stack, suppress(_AllFoundError):
            for name in self.names:
                layer = self.module.get_submodule(name)
                handle = layer.register_forward_hook(partial(keep, name))
                stack.callback(handle.remove)
            self.module(images)
        missing = [x for x in self.names if x not in found]
        if missing:
            raise ValueError(f"layers {missing} are not called by the model.")
        return [found[name] for name in self.names]


class _AllFoundError(Exception):
    """Ends a model's forward when all that is wanted of it is there."""


class Tokens(nn.Module):
    """Feature maps of a transformer whose tokens are a grid of patches.

    Parameters
    ----------
    module : torch.nn.Module
        A model, or `Stages` of one, that returns tokens (n, n_tokens, length), or a
        list of them.
    patch_size : int
        Pixels of a side of the patch that is a token, such as 14 or 16.
    skip : int, default=1
        Tokens before those of the patches: a class token, and registers.

    Examples
    --------
    ``Tokens(Stages(vit, ["blocks.5", "blocks.8"]), patch_size=14)`` for a DINOv2 model;
    its images need sides that are multiples of 14.
    """

    def __init__(self, module, patch_size, skip=1):
        super().__init__()
        self.module = module
        self.patch_size = patch_size
        self.skip = skip

    def forward(self, images):
        """Return tokens as maps, (n, length, rows, cols)."""
        found = self.module(images)
        tokens = [found] if isinstance(found, torch.Tensor) else found
        rows, cols = (length // self.patch_size for length in images.shape[2:])
        return [self._make_map(x, rows, cols) for x in tokens]

    def _make_map(self, x, rows, cols):
        if x.ndim != 3 or x.shape[1] != self.skip + rows * cols:
            raise ValueError(
                f"tokens of shape {tuple(x.shape)} should be (n, {self.skip} + {rows} "
                f"x {cols}, length). Pass the model's patch_size, the number of other "
                "tokens as skip, and images whose sides are multiples of patch_size."
            )
        x = x[:, self.skip :].transpose(1, 2)
        return x.reshape(len(x), -1, rows, cols)


class Function(nn.Module):
    """A function of images, for features that no torch module makes.

    Parameters
    ----------
    function : callable
        Takes images, ndarray of shape (n, height, width, channels) in 0..1, float32,
        and returns features of shape (n, rows, cols, length), or a list of such. To be
        pickled, it must be defined in a module.

    Examples
    --------
    >>> from skpatchsvdd.encoders import Function
    >>> def take_every_fourth(images):
    ...     return images[:, 2::4, 2::4]
    >>> encoder = Function(take_every_fourth)
    """

    def __init__(self, function):
        super().__init__()
        if not callable(function):
            raise TypeError(f"function must be callable, got {function!r}.")
        self.function = function

    def forward(self, images):
        """Return the function's features as maps."""
        found = self.function(images.permute(0, 2, 3, 1).cpu().numpy())
        arrays = found if isinstance(found, list | tuple) else [found]
        maps = [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]
        return [x.movedim(-1, 1).to(images.device) for x in maps]


class _TimmMaps(nn.Module):
    """Maps of a timm model: those of some indices, or of None all."""

    def __init__(self, model, indices):
        super().__init__()
        self.model = model
        self.indices = indices

    def forward(self, images):
        """Return the maps, (n, length, rows, cols)."""
        if hasattr(self.model, "forward_intermediates"):
            return self.model.forward_intermediates(
                images, self.indices, intermediates_only=True, output_fmt="NCHW"
            )
        maps = self.model(images)
        return maps if self.indices is None else [maps[i] for i in self.indices]


def from_timm(model, out_indices=None) -> nn.Module:
    """Make an encoder of a model of timm, with its weights as they are.

    Parameters
    ----------
    model : torch.nn.Module
        What ``timm.create_model`` returns, with or without ``features_only=True``:
        a convolutional network, or a vision transformer.
    out_indices : list of int, default=None
        Which of its stages, or blocks, to take; all if it is None.

    Returns
    -------
    encoder : Normalized
        With the mean and deviation that the model was trained with, if it says so, or
        else ImageNet's.
    """
    config = getattr(model, "pretrained_cfg", None) or {}
    if not (hasattr(model, "forward_intermediates") or hasattr(model, "feature_info")):
        raise ValueError(
            f"{type(model).__name__} has neither forward_intermediates nor "
            "feature_info, as timm's models have. Use Stages and names of layers."
        )
    maps = _TimmMaps(model, None if out_indices is None else list(out_indices))
    return Normalized(maps, config.get("mean", _MEAN), config.get("std", _STD))


def from_torchvision(model, nodes) -> nn.Module:
    """Make an encoder of a model of torchvision, with its weights as they are.

    Parameters
    ----------
    model : torch.nn.Module
        Such as ``torchvision.models.wide_resnet50_2()``, weights loaded.
    nodes : list of str
        Names of the layers whose outputs are taken, such as ["layer2", "layer3"].

    Returns
    -------
    encoder : Normalized
        With ImageNet's mean and deviation.
    """
    return Normalized(Stages(model, nodes))
