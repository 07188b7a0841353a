"""An encoder run over whole images, in tiles where they are large."""

import copy
import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._encoding.base import grid_shape
from skpatchsvdd._encoding.illumination import REACH, damp_light, damp_windows
from skpatchsvdd._encoding.pictures import keep_pictures
from skpatchsvdd._encoding.positions import add_positions
from skpatchsvdd._images import pixels_to_float
from skpatchsvdd._utils import as_writable, exact_convolutions, halve_without_memory

# Patches inspected together. On a CPU one image of usual size is enough work.
_CPU_PATCHES = 2048

_GPU_PATCHES = 2**18

# Images of more pixels are encoded in tiles, of patches that begin within this many
# pixels along each axis, about, so that memory does not grow with the image.
_WHOLE_PIXELS = 2**20

_TILE = 512


class DenseSetting(NamedTuple):
    """How images are encoded, all but the encoder itself; see `DenseEncoder`."""

    image_size: tuple
    center: np.ndarray
    light: float
    strides: tuple
    device: torch.device
    roi: np.ndarray | None = None

    def make(self, encoder):
        """Return an encoder that works so."""
        return DenseEncoder(encoder, *self)

    def within(self, window, strides):
        """Return the setting for a window of the images, a pair of slices."""
        pairs = zip(window, self.image_size, strict=True)
        size = tuple(len(range(length)[part]) for part, length in pairs)
        center = self.center if self.center.size == 1 else self.center[window]
        roi = None if self.roi is None else self.roi[window]
        return self._replace(image_size=size, center=center, strides=strides, roi=roi)


class DenseEncoder:
    """An encoder on its device, run over whole images.

    Parameters
    ----------
    encoder : PatchEncoder
        Left as it is; a copy works on the device.
    image_size : tuple of (height, width)
        Size of the images.
    center : ndarray of shape (height, width, n_channels) or (1, 1, 1)
        Subtracted from every image.
    light : float
        Fraction of slow changes of brightness that stays.
    strides : tuple of int
        One for each of the encoder's patch sizes.
    device : torch.device
        Where to compute.
    roi : ndarray of bool of shape (height, width) or None
        Pixels that are looked at. All others are as if they were the centre's, so that
        nothing depends on them. None looks at all.

    Attributes
    ----------
    cells : list of ndarray of int
        For each scale, the numbers of the patches that hold a pixel to look at.
    """

    def __init__(self, encoder, image_size, center, light, strides, device, roi=None):
        self.patch_sizes = encoder.patch_sizes
        self.scale_weights = encoder.scale_weights
        # Scales by which images are compared: of the formulas, if they are there.
        names = [x.name for x in encoder.members for _ in x.patch_sizes]
        numbers = range(len(names))
        self.compared = [i for i in numbers if names[i] == "formulas"] or list(numbers)
        self.is_capturable = all(x.is_capturable for x in encoder.members)
        self.strides = strides
        self.center = center
        self.light = light
        self.image_size = image_size
        self.device = device
        self.grids = [
            grid_shape(self.image_size, size, stride)
            for size, stride in zip(self.patch_sizes, strides, strict=True)
        ]
        self.roi = roi
        self.cells = [
            find_cells(roi, grid, size, stride)
            for grid, size, stride in zip(
                self.grids, self.patch_sizes, strides, strict=True
            )
        ]
        self._roi = None if roi is None else torch.tensor(roi, device=device)
        self._center = torch.tensor(center, device=device)
        copied = copy.deepcopy(encoder).to(device).requires_grad_(False)
        self._members, start = [], 0
        for member in copied.members:
            stop = start + len(member.patch_sizes)
            self._members.append((member, slice(start, stop)))
            start = stop
            member.prepare()

    @property
    def batch_size(self):
        """How many images to inspect together."""
        n_patches = _CPU_PATCHES if self.device.type == "cpu" else _GPU_PATCHES
        return max(1, n_patches // max(rows * cols for rows, cols in self.grids))

    def move(self, images):
        """Return an array of images as a tensor on the device."""
        if self.device.type != "cuda":
            return torch.tensor(images, device=self.device)
        # Without waiting for what the GPU is at.
        images = torch.from_numpy(as_writable(np.ascontiguousarray(images)))
        return images.pin_memory().to(self.device, non_blocking=True)

    def encode(self, images, choose=list):
        """Encode images, (n, height, width, n_channels), bytes or 0..1.

        Parameters
        ----------
        images : ndarray, or tensor on the device
            The images.
        choose : callable
            ``choose(tiles)`` returns those of the tiles along an axis of a large image
            that are encoded; see `list_places`.

        Returns
        -------
        features : list of tensors of shape (n, rows, cols, D)
            One for each scale.
        """
        x = self._center_images(images)
        # A CPU's convolution rounds differently for other batch sizes: image by image,
        # a score depends on that image alone, and takes no longer.
        size = 1 if self.device.type == "cpu" else len(x)
        with torch.inference_mode(), exact_convolutions(self.device):
            maps = halve_without_memory(
                lambda n: [self._encode_maps(part, choose) for part in x.split(n)], size
            )
        scales = zip(*maps, strict=True)
        return [torch.cat(scale).permute(0, 2, 3, 1) for scale in scales]

    def _center_images(self, images):
        """Return images less the centre, (n, n_channels, height, width)."""
        if not isinstance(images, torch.Tensor):
            images = self.move(images)
        x = pixels_to_float(images) - self._center
        x = x.permute(0, 3, 1, 2)  # (n, c, h, w)
        return x if self._roi is None else torch.where(self._roi, x, 0.0)

    def picture(self, images):
        """Return what the comparison sees of images, on the device, in bytes."""
        x = self._center_images(images) + self._center.permute(2, 0, 1)
        return keep_pictures(x)

    def _encode_maps(self, images, choose):
        """Features of whole images by scale, (n, D, rows, cols)."""
        features = []
        for member, scales in self._members:
            own = images
            if member.sees_light:
                own = images + self._center.permute(2, 0, 1)  # as they came in
            if math.prod(self.image_size) <= _WHOLE_PIXELS:
                features += self._encode_whole(member, scales, own)
            else:
                features += self._encode_tiles(member, scales, own, choose)
        return features

    def _encode_whole(self, member, scales, images):
        if not member.sees_light:
            images = damp_light(images, self.light)
        return member.encode_images(images, self.strides[scales])

    def _encode_tiles(self, member, scales, images, choose):
        """Features of a large image, tile by tile."""
        encode = self._encode_seen_tile if member.sees_light else self._encode_tile
        if not member.sees_light:
            images = F.pad(images, (REACH,) * 4)
        down, across = (choose(self._tiles(scales, axis)) for axis in (0, 1))
        bands = [
            [encode(member, scales, images, rows, cols) for cols in across]
            for rows in down
        ]
        # Tile beside tile, then band below band, for each scale.
        bands = [[torch.cat(x, dim=3) for x in zip(*b, strict=True)] for b in bands]
        return [torch.cat(x, dim=2) for x in zip(*bands, strict=True)]

    def _tiles(self, scales, axis):
        """Cut an axis into tiles: where their patches begin, from and up to."""
        step = math.lcm(*self.strides[scales])
        step *= max(_TILE // step, 1)
        length = self.image_size[axis]
        # The largest patch must fit into the last tile.
        starts = range(0, length - max(self.patch_sizes[scales]) + 1, step)
        return list(itertools.pairwise([*starts, length]))

    def list_places(self, choose):
        """Return, for each scale, the rows and columns of the patches of some tiles.

        `choose` is that of `encode`.
        """
        places = []
        for _, scales in self._members:
            tiles = [choose(self._tiles(scales, axis)) for axis in (0, 1)]
            for stride, grid in zip(
                self.strides[scales], self.grids[scales], strict=True
            ):
                axes = zip(tiles, grid, strict=True)
                places.append([_list_starts(own, stride, n) for own, n in axes])
        return places

    def _encode_tile(self, member, scales, padded, rows, cols):
        """Features of the patches that begin within some rows and columns."""
        (top, bottom), (left, right) = self._spans(scales, rows, cols, 0)
        window = padded[
            :, :, top : bottom + 2 * REACH, left : right + 2 * REACH
        ]  # REACH more on every side
        corner = torch.tensor([[top, left]], device=padded.device)
        corner = corner.expand(len(padded), -1)
        window = damp_windows(window, corner, self.image_size, self.light)
        features = member.encode_images(window, self.strides[scales])
        return self._cut_tile(scales, features, rows, cols, (top, left))

    def _encode_seen_tile(self, member, scales, images, rows, cols):
        """Do the same for an encoder that sees images as they are, and around patches.

        As many pixels around are there as its features depend on.
        """
        (top, bottom), (left, right) = self._spans(scales, rows, cols, member.margin)
        window = images[:, :, top:bottom, left:right]
        features = member.encode_images(window, self.strides[scales])
        return self._cut_tile(scales, features, rows, cols, (top, left))

    def _spans(self, scales, rows, cols, margin):
        """Return the pixels that patches which begin in a tile depend on."""
        reach = max(self.patch_sizes[scales]) - 1 + margin
        return [
            (max(start - margin, 0), min(stop + reach, length))
            for (start, stop), length in zip((rows, cols), self.image_size, strict=True)
        ]

    def _cut_tile(self, scales, features, rows, cols, corner):
        """Return the features of the patches of a tile, of those of a window."""
        parts = []
        own = zip(features, self.strides[scales], self.grids[scales], strict=True)
        for x, stride, grid in own:
            spans = []
            axes = zip((rows, cols), corner, grid, strict=True)
            for (start, stop), begin, n in axes:
                first = (start - begin) // stride
                count = min(-(-stop // stride), n) - start // stride
                spans.append(slice(first, first + count))
            parts.append(x[:, :, spans[0], spans[1]])
        return parts

    def add_positions(self, features, units):
        """Append row and column to the features of each scale, in these units."""
        return [
            add_positions(x, stride, self.image_size, unit)
            for x, stride, unit in zip(features, self.strides, units, strict=True)
        ]

    def encode_stack(self, images, choose=list, progress=None):
        """Encode a stack of images, batch by batch; by scale, (n, rows, cols, D).

        `choose` is that of `encode`; ``progress(n)`` is told how many images are done.
        """
        batches = []
        for start, batch in images.batches(self.batch_size):
            batches.append(self.encode(batch, choose))
            if progress is not None:
                progress(start + len(batch))
        return [torch.cat(scale) for scale in zip(*batches, strict=True)]


def _list_starts(tiles, stride, n):
    """Return the numbers of the patches along an axis, of n, that begin in tiles."""
    spans = [np.arange(a // stride, min(-(-b // stride), n)) for a, b in tiles]
    return np.concatenate(spans)


def find_cells(roi, grid, patch_size, stride):
    """Return the numbers of the patches of a grid that hold a pixel to look at.

    A pixel that no patch covers belongs to the patches of the nearest one that is
    covered, as in the maps.
    """
    if roi is None:
        return np.arange(math.prod(grid))
    for n in grid:  # first along rows, then along columns
        starts = stride * np.arange(n)
        covered = np.unique(starts[:, None] + np.arange(patch_size))
        distances = abs(np.arange(len(roi))[:, None] - covered)
        folded = np.zeros_like(roi)
        np.logical_or.at(folded, covered[distances.argmin(axis=1)], roi)
        roi = folded.T
    sums = np.pad(roi, ((1, 0), (1, 0))).cumsum(0, dtype=np.int64).cumsum(1)
    rows, cols = (stride * np.arange(n) for n in grid)
    strips = sums[rows + patch_size] - sums[rows]
    return np.flatnonzero(strips[:, cols + patch_size] - strips[:, cols])
