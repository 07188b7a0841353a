"""A user's torch module as an encoder of patches."""

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._encoding.axes import AxesSum
from skpatchsvdd._encoding.base import PatchEncoder, grid_shape
from skpatchsvdd._encoding.dry_run import copy_frozen, run_module, try_module
from skpatchsvdd._images import pixels_to_float

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


class ModuleEncoder(PatchEncoder):
    """Feature maps of a user's module, averaged over patches.

    Each map is a scale. Its cells are taken to be equal parts of the image; a feature
    is the mean of the map over a patch, brought to its main axes.

    Parameters
    ----------
    module : torch.nn.Module
        What `copy_frozen` returns. It maps (n, n_channels, height, width) in 0..1 to
        maps.
    n_channels : int
        Channels of the images.
    number : int
        Which of several modules it is.
    patch_sizes, strides : tuple of int
        One for each map.
    multiple : int
        Images are continued by their edges to a multiple of this many pixels.
    axes : list of (ndarray of shape (D,), ndarray of shape (D, length)), or None
        For each map, the mean of features, and the axes they are brought to. None
        leaves them as they are.
    """

    name = "module"
    is_frozen = True
    is_trainable = False
    sees_light = True
    is_capturable = False
    exponent = 1.0

    def __init__(
        self, module, n_channels, number, patch_sizes, strides, multiple, axes=None
    ):
        nn.Module.__init__(self)
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

    @property
    def scale_names(self):
        """What each scale is called: sizes may be those of other encoders, too."""
        maps = range(len(self.patch_sizes))
        return tuple(f"module{self.number}.map{i}" for i in maps)

    @property
    def lengths(self):
        """Numbers in a feature of each scale; None is not known before images are."""
        return tuple(x.shape[1] for x in self.axes) or (None,) * len(self.patch_sizes)

    def encode_patches(self, batches):
        """Return features of patches as if they were whole images."""
        features = []
        for patches in batches:
            scale = self.patch_sizes.index(patches.shape[-1])
            found = self.encode_images(patches, self.strides)
            features.append(found[scale].flatten(1))
        return features

    def encode_images(self, images, strides):
        """Return features of all patches of whole images, by scale."""
        size = images.shape[2:]
        images = _continue_edges(images, self.multiple).contiguous()
        features = []
        found = zip(self._run(images), self.patch_sizes, strides, strict=True)
        for i, (x, patch_size, stride) in enumerate(found):
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

    def _run(self, images):
        found = self.module(images)
        maps = [found] if isinstance(found, torch.Tensor) else found
        return [x.float() for x in maps]

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


def make_module_encoder(module, number, images, device):
    """Make an encoder of a user's module for images, or say what does not fit.

    Parameters
    ----------
    module : torch.nn.Module
        Left as it is: a copy is worked on.
    number : int
        Which of several modules it is.
    images : ImageStack
        At least two images, which it is tried on.
    device : torch.device
        Where it is to work.

    Returns
    -------
    encoder : ModuleEncoder
        On the CPU, without axes.
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
