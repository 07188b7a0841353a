"""A user's torch module as an encoder of patches, along the axes of its features."""

import copy
import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._encoding.base import PatchEncoder, grid_shape
from skpatchsvdd._encoding.dry_run import copy_frozen, run_module, try_module
from skpatchsvdd._images import pixels_to_float
from skpatchsvdd._utils import normal_mode

# A feature is the mean over this many cells of a map, along each axis, and speaks for
# the pixels they stand for.
_CELLS = 3
# Pixels from one patch to the next, at least: finer maps are averaged, for a bank of
# single pixels would be too large to search.
_SMALLEST_STRIDE = 4
# Pixels around the patches of a tile that a module sees, at least.
_MARGIN = 128
# Images are continued to a multiple of the cells' sizes, up to this many pixels.
LARGEST_MULTIPLE = 128
# Pixels of a side that a module is tried on, at most: the size of a tile and its
# margins, about.
_TRIED = 1024
# Images that main axes are learnt from, at most, evenly spaced.
_N_ADAPTED = 128
# Numbers that features are brought to, at most: few enough to search.
LENGTH = 128
# How much axes are evened out: each is divided by the fourth root of its variance, half
# of a whitening, and of this fraction of the mean variance, against axes of noise.
_POWER, _SHRINKAGE = 0.25, 0.02


class ModuleEncoder(PatchEncoder):
    """Feature maps of a user's module, averaged over patches.

    Each map is a scale. Its cells are taken to be equal parts of the image; a feature
    is the mean of the map over a patch, brought to its main axes.

    `module` is what `copy_frozen` returns, and `number` tells it from others. Images
    are continued by their edges to a multiple of `multiple` pixels. `axes` are, for
    each map, the mean of features (D,) and the axes (D, length) that they are brought
    to; None leaves them as they are.
    """

    name = "module"
    is_pretrained = True
    is_trainable = False
    sees_light = True
    is_capturable = False
    exponent = 1.0

    @normal_mode()
    def __init__(
        self, module, n_channels, number, patch_sizes, strides, multiple, axes=None
    ):
        nn.Module.__init__(self)
        if any(x.is_inference() for x in module.parameters()):
            module = copy.deepcopy(module)  # those could be used in no other mode
        self.module = module
        self.number = number
        self.patch_sizes = tuple(patch_sizes)
        self.strides = tuple(strides)
        self.multiple = multiple
        step = math.lcm(*self.strides)
        self.margin = step * -(-_MARGIN // step)
        self.means, self.axes = nn.ParameterList(), nn.ParameterList()
        for mean, columns in axes or ():
            for kept, array in ((self.means, mean), (self.axes, columns)):
                tensor = torch.from_numpy(np.array(array, dtype=np.float32))
                kept.append(nn.Parameter(tensor, requires_grad=False))
        length = self.axes[0].shape[1] if axes else 0
        self.config = (n_channels, length, max(self.patch_sizes))
        n_maps = len(self.patch_sizes)
        # Not sizes, which may be those of other encoders, too.
        self.scale_names = tuple(f"module{number}.map{i}" for i in range(n_maps))
        # None is not known before images are.
        self.lengths = tuple(x.shape[1] for x in self.axes) or (None,) * n_maps

    def encode_images(self, images, strides):
        """Return features of all patches of whole images, by scale."""
        size = images.shape[2:]
        images = _continue_edges(images, self.multiple).contiguous()
        features = []
        found = self.module(images)
        maps = [found] if isinstance(found, torch.Tensor) else found
        scales = zip(maps, self.patch_sizes, strides, strict=True)
        for i, (x, patch_size, stride) in enumerate(scales):
            x = x.float()
            if len(self.axes):
                x = x - self.means[i][:, None, None]
                x = torch.einsum("nchw,cd->ndhw", x, self.axes[i])
            down, across = (
                _average(length, padded, n, patch_size, stride, x.device)
                for length, padded, n in zip(
                    size, images.shape[2:], x.shape[2:], strict=True
                )
            )
            features.append(down @ x @ across.T)
        return features

    def adapt(self, images, setting):
        """Return the encoder with the main axes of the features of these images."""
        spaced = np.linspace(0, len(images) - 1, min(len(images), _N_ADAPTED))
        images = images.take(np.unique(spaced.astype(int)))
        dense = setting._replace(strides=self.strides).make(self)
        sums = [AxesSum() for _ in self.strides]
        for _, batch in images.batches(dense.batch_size):
            found = zip(sums, dense.encode(batch), dense.cells, strict=True)
            for one_sum, x, cells in found:
                one_sum.add(x.flatten(1, 2)[:, torch.from_numpy(cells).to(x.device)])
        return self.replace_axes([x.result() for x in sums])

    def replace_axes(self, axes):
        """Return an encoder of the same module with these axes."""
        made, args = self.__reduce__()
        return made(*args[:-1], axes).eval()

    def __reduce__(self):
        parts = zip(self.means, self.axes, strict=True)
        axes = [tuple(x.detach().cpu().numpy() for x in pair) for pair in parts] or None
        n_channels, *_ = self.config
        args = (self.module, n_channels, self.number, self.patch_sizes, self.strides)
        return ModuleEncoder, (*args, self.multiple, axes)


class AxesSum:
    """Sums over features, of which main axes are made: in float64, on the CPU."""

    def __init__(self):
        self._n = 0
        self._sum = self._square = 0.0

    def add(self, features):
        """Add features, (..., D)."""
        x = features.reshape(-1, features.shape[-1]).double()
        self._sum = self._sum + x.sum(dim=0).cpu()
        self._square = self._square + (x.T @ x).cpu()
        self._n += len(x)

    def result(self):
        """Return mean and axes, (D,) and (D, length), as arrays of float32."""
        mean = self._sum / self._n
        variances, axes = torch.linalg.eigh(self._square / self._n - mean.outer(mean))
        variances, axes = variances[-LENGTH:].clamp(min=0), axes[:, -LENGTH:]
        evened = variances + _SHRINKAGE * variances.mean()
        axes = axes / evened.clamp(min=torch.finfo(torch.float32).tiny) ** _POWER
        return mean.float().numpy(), axes.float().numpy()


def make_module_encoder(module, number, images, device):
    """Make an encoder of a user's module for images, or say what does not fit.

    It is tried on two of the images. The encoder is on the CPU, and has no axes yet.
    """
    module = copy_frozen(module)
    tried = images.take([0, 1]).pixels[:, :_TRIED, :_TRIED]
    tried = pixels_to_float(torch.tensor(tried, device=device)).permute(0, 3, 1, 2)
    # The second as a negative: what mixes images of a batch shows it.
    tried = torch.stack([tried[0], 1 - tried[1]])
    module.to(device)
    maps = try_module(module, tried)
    sizes = [
        max(length / n for length, n in zip(tried.shape[2:], x.shape[2:], strict=True))
        for x in maps
    ]
    patches = [_choose_patch(size, min(images.image_shape[:2])) for size in sizes]
    multiple = _find_multiple(module, tried, sizes)
    patch_sizes, strides = zip(*patches, strict=True)
    n_channels = images.image_shape[2]
    args = (n_channels, number, patch_sizes, strides, multiple)
    return ModuleEncoder(module.to("cpu"), *args).eval()


def _choose_patch(cell, shortest):
    """Return the size and the stride of patches, of cells of some pixels."""
    stride = min(max(round(cell), _SMALLEST_STRIDE), shortest)
    n_cells = max(min(_CELLS, shortest // stride), 1)
    return n_cells * stride, stride


def _find_multiple(module, images, sizes):
    """Return what images are continued to a multiple of: whole cells, if that works."""
    multiple = math.lcm(*(max(round(size), 1) for size in sizes))
    if multiple == 1 or multiple > LARGEST_MULTIPLE:
        return 1
    continued = _continue_edges(images, multiple)
    if continued.shape == images.shape:
        return multiple
    try:
        maps = run_module(module, continued)
    except ValueError:  # as of a module for one size
        return 1
    is_right = all(
        length == n * round(size)
        for x, size in zip(maps, sizes, strict=True)
        for length, n in zip(continued.shape[2:], x.shape[2:], strict=True)
    )
    return multiple if is_right else 1


def _continue_edges(images, multiple):
    """Repeat the last rows and columns up to a multiple of some pixels."""
    missing = [-length % multiple for length in images.shape[2:]]
    if not any(missing):
        return images
    return F.pad(images, (0, missing[1], 0, missing[0]), mode="replicate")


@functools.lru_cache(maxsize=64)
def _average(length, padded, n_cells, patch_size, stride, device):
    """Weight of each cell in the mean over each patch, (n_patches, n_cells).

    Cells are equal parts of an image that was continued to `padded` pixels.
    """
    (n_patches,) = grid_shape((length,), patch_size, stride)
    starts = stride * np.arange(n_patches)[:, None]
    edges = np.arange(n_cells + 1) * padded / n_cells
    first = np.maximum(edges[:-1], starts)
    last = np.minimum(edges[1:], starts + patch_size)
    overlap = np.maximum(last - first, 0)
    means = (overlap / overlap.sum(axis=1, keepdims=True)).astype(np.float32)
    return torch.from_numpy(means).to(device)
