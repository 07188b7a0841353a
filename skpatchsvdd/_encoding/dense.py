"""An encoder run over whole images, in tiles where they are large; light, damped."""

import copy
import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._encoding.base import grid_shape
from skpatchsvdd._images import pixels_to_float, resize_images
from skpatchsvdd._utils import as_writable, exact_convolutions, halve_without_memory

# Patches inspected together. On a CPU one image of usual size is enough work.
_CPU_PATCHES, _GPU_PATCHES = 2048, 2**18
# Images of more pixels are encoded in tiles, of patches that begin within this many
# pixels along each axis, about, so that memory does not grow with the image.
_WHOLE_PIXELS, _TILE = 2**20, 512
# Standard deviation of the blur that separates slow changes of light from fast ones, in
# pixels, and how far it looks, three of them.
_SIGMA, REACH = 8.0, 24
# Means of four bytes often lie half-way between two: these are rounded up, on any
# machine.
_UP = 0.01


class DenseSetting(NamedTuple):
    """How images are encoded, all but the encoder itself."""

    image_size: tuple
    center: np.ndarray  # subtracted from images, of their shape or (1, 1, 1)
    light: float  # the fraction of slow changes of brightness that stays
    strides: tuple  # one for each of the encoder's patch sizes
    device: torch.device
    roi: np.ndarray | None = None  # the pixels that are looked at; all if None
    reduction: int = 1  # images come at so many times this size

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
    """An encoder on its device, run over whole images; for the rest see `DenseSetting`.

    The encoder given is left as it is; a copy works. Pixels outside of `roi` are as if
    they were the centre's, so that nothing depends on them. `cells` are, for each
    scale, the numbers of the patches that hold a pixel to look at.
    """

    def __init__(
        self,
        encoder,
        image_size,
        center,
        light,
        strides,
        device,
        roi=None,
        reduction=1,
    ):
        self.patch_sizes = encoder.patch_sizes
        self.scale_weights = encoder.scale_weights
        # Scales by which images are compared: of "procedural", if they are there.
        members = [x for x in encoder.members for _ in x.patch_sizes]
        procedural = [i for i, x in enumerate(members) if x.name == "procedural"]
        self.compared = procedural or list(range(len(members)))
        # Those at full resolution, and the pixels of one of their patches: what a
        # defect lights up that is no larger.
        self.details = [i for i, x in enumerate(members) if x.sees_detail]
        self.detail_pixels = sum(self.patch_sizes[i] ** 2 for i in self.details)
        self.is_capturable = all(x.is_capturable for x in encoder.members)
        self.image_size = image_size
        self.center = center
        self.light = light
        self.strides = strides
        self.device = device
        self.roi = roi
        self.reduction = reduction
        # By scale, how many patches a bank of no given size holds, or None.
        self.most_rows = [x.most_rows for x in members]
        self._tile_steps = [x.tile_step for x in members]
        scales = list(zip(self.patch_sizes, strides, strict=True))
        self.grids = [grid_shape(image_size, *scale) for scale in scales]
        pairs = zip(self.grids, scales, strict=True)
        self.cells = [find_cells(roi, grid, *scale) for grid, scale in pairs]
        self._roi = None if roi is None else torch.tensor(roi, device=device)
        self._center = torch.tensor(center, device=device)
        self._members = _load_members(encoder, device)

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
        """Return features of images by scale, (n, rows, cols, D).

        Images are an array, or a tensor on the device, (n, height, width, n_channels),
        bytes or 0..1, at `reduction` times `image_size`. ``choose(tiles)`` returns
        those of the tiles along an axis of a large image that are encoded; see
        `list_places`.
        """
        if not isinstance(images, torch.Tensor):
            images = self.move(images)
        # A CPU's convolution rounds differently for other batch sizes: image by image,
        # a score depends on that image alone, and takes no longer.
        size = 1 if self.device.type == "cpu" else len(images)
        with torch.inference_mode(), exact_convolutions(self.device):
            maps = halve_without_memory(
                lambda n: [self._encode_maps(x, choose) for x in images.split(n)], size
            )
        scales = zip(*maps, strict=True)
        return [torch.cat(scale).permute(0, 2, 3, 1) for scale in scales]

    def _center_images(self, images):
        """Return images less the centre, (n, n_channels, height, width)."""
        x = pixels_to_float(images)
        if self.reduction > 1:
            x = resize_images(x.permute(0, 3, 1, 2), self.image_size)
            x = x.permute(0, 2, 3, 1)
        x = (x - self._center).permute(0, 3, 1, 2)  # (n, c, h, w)
        return x if self._roi is None else torch.where(self._roi, x, 0.0)

    def picture(self, images):
        """Return what the comparison sees of images, on the device, in bytes."""
        x = self._center_images(images) + self._center.permute(2, 0, 1)
        return keep_pictures(x)

    def _show_details(self, images):
        """Return images at full resolution, (n, n_channels, height, width)."""
        x = pixels_to_float(images).permute(0, 3, 1, 2)
        if self._roi is None:
            return x
        roi = self._roi.repeat_interleave(self.reduction, 0)
        roi = roi.repeat_interleave(self.reduction, 1)
        return torch.where(roi, x, self._center.permute(2, 0, 1))

    def _encode_maps(self, pixels, choose):
        """Features of whole images by scale, (n, D, rows, cols)."""
        images = self._center_images(pixels)
        is_whole = math.prod(self.image_size) <= _WHOLE_PIXELS
        features = []
        for member, scales in self._members:
            if member.sees_detail:
                details = self._show_details(pixels)
                features += member.encode_images(details, self.strides[scales])
                continue
            x = images
            if member.sees_light:
                x = images + self._center.permute(2, 0, 1)  # as they came in
            if not is_whole:
                features += self._encode_tiles(member, scales, x, choose)
                continue
            if not member.sees_light:
                x = damp_light(x, self.light)
            features += member.encode_images(x, self.strides[scales])
        return features

    def _encode_tiles(self, member, scales, images, choose):
        """Features of a large image, tile by tile."""
        if not member.sees_light:
            images = F.pad(images, (REACH,) * 4)
        down, across = (choose(self._tiles(scales, axis)) for axis in (0, 1))
        bands = [
            [self._encode_tile(member, scales, images, (rows, cols)) for cols in across]
            for rows in down
        ]
        # Tile beside tile, then band below band, for each scale.
        bands = [[torch.cat(x, dim=3) for x in zip(*b, strict=True)] for b in bands]
        return [torch.cat(x, dim=2) for x in zip(*bands, strict=True)]

    def _tiles(self, scales, axis):
        """Cut an axis into tiles: where their patches begin, from and up to."""
        step = math.lcm(*self.strides[scales], *self._tile_steps[scales])
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
                places.append([_list_starts(x, stride, n) for x, n in axes])
        return places

    def _encode_tile(self, member, scales, images, tile):
        """Features of the patches that begin within a tile, its rows and columns.

        An encoder that sees images as they are sees as many pixels around as its
        features depend on. For others, images are padded by `REACH` on every side.
        """
        reach = max(self.patch_sizes[scales]) - 1 + member.margin
        (top, bottom), (left, right) = (
            (max(start - member.margin, 0), min(stop + reach, length))
            for (start, stop), length in zip(tile, self.image_size, strict=True)
        )
        if member.sees_light:
            window = images[:, :, top:bottom, left:right]
        else:
            window = images[:, :, top : bottom + 2 * REACH, left : right + 2 * REACH]
            corner = torch.tensor([[top, left]], device=images.device)
            corner = corner.expand(len(images), -1)
            window = damp_windows(window, corner, self.image_size, self.light)
        features = member.encode_images(window, self.strides[scales])
        return self._cut_tile(scales, features, tile, (top, left))

    def _cut_tile(self, scales, features, tile, corner):
        """Return the features of the patches of a tile, of those of a window."""
        parts = []
        grids = self.grids[scales]
        for x, stride, grid in zip(features, self.strides[scales], grids, strict=True):
            spans = []
            for (start, stop), begin, n in zip(tile, corner, grid, strict=True):
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


def _load_members(encoder, device):
    """Return copies of encoders on a device, each with its slice of the scales."""
    copied = copy.deepcopy(encoder).to(device).requires_grad_(False)
    members, start = [], 0
    for member in copied.members:
        stop = start + len(member.patch_sizes)
        members.append((member, slice(start, stop)))
        start = stop
        member.prepare()
    return members


def add_positions(features, stride, image_size, unit):
    """Append row and column to features, (n_images, rows, cols, D).

    `unit` is the distance between two positions as far apart as the longer side of an
    image; 0 leaves the features as they are.
    """
    if unit == 0:
        return features
    n_images, rows, cols, _ = features.shape
    step = unit * stride / max(image_size)
    down, across = (
        torch.arange(n, dtype=features.dtype, device=features.device) * step
        for n in (rows, cols)
    )
    positions = torch.stack(torch.meshgrid(down, across, indexing="ij"), dim=2)
    return torch.cat([features, positions.expand(n_images, -1, -1, -1)], dim=3)


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


def keep_pictures(images):
    """Return images in 0..1 as the comparison sees them, small enough to be kept.

    At half their resolution, uint8 (n, 1 or 3, height / 2, width / 2).
    Two channels become one, their mean, and more than three become three.
    """
    n_channels = images.shape[1]
    if n_channels not in (1, 3):
        parts = images.tensor_split(3 if n_channels > 3 else 1, dim=1)
        images = torch.cat([x.mean(dim=1, keepdim=True) for x in parts], dim=1)
    x = F.avg_pool2d(images, 2, ceil_mode=True, count_include_pad=False)
    return x.mul(255).add_(_UP).round_().clamp_(0, 255).to(torch.uint8)


def show_pictures(kept):
    """Return kept pictures as the network takes them, (n, 3, rows, cols) in 0..1."""
    return kept.float().div_(255).expand(-1, 3, -1, -1)


def damp_light(images, kept):
    """Damp the slow part of images, (n, n_channels, height, width), less their centre.

    So a change of light shows less. The slow part is a Gaussian blur, at the edges the
    mean over the pixels that there are; the fraction `kept` of it stays.
    """
    if kept == 1:
        return images
    start = torch.zeros(1, dtype=torch.long, device=images.device)
    down, across = (
        blur_weights(start, length, 0, length) for length in images.shape[2:]
    )
    return images - (1 - kept) * _blur(images, down, across)


def damp_windows(windows, corners, image_size, kept):
    """Do the same for parts of images, cut out with a margin of `REACH` pixels.

    What lies outside of the image has no weight. Corners, (n, 2), are row and column,
    in the image, of the top left pixel inside the margin. The result, less the margin,
    is exactly these pixels of the damped images.
    """
    inner = windows[:, :, REACH:-REACH, REACH:-REACH]
    if kept == 1:
        return inner
    down, across = (
        blur_weights(start, n_out, REACH, length)
        for start, n_out, length in zip(
            corners.unbind(dim=1), inner.shape[2:], image_size, strict=True
        )
    )
    return inner - (1 - kept) * _blur(windows, down, across)


def blur_weights(starts, n_out, margin, length):
    """Weight of each pixel along an axis in the blur at each pixel of a window.

    As (n, n_out, n_out + 2 * margin).
    """
    pixel = torch.arange(-margin, n_out + margin, device=starts.device)
    away = pixel[margin : margin + n_out, None] - pixel  # (n_out, n_in)
    weights = torch.exp(-away.square() / (2 * _SIGMA**2)) * (away.abs() <= REACH)
    position = starts[:, None] + pixel  # (n, n_in)
    weights = weights * ((position >= 0) & (position < length))[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def _blur(x, down, across):
    return down[:, None] @ x @ across[:, None].mT
