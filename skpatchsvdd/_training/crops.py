"""Crops for dense training: relit, shifted and damaged, drawn on the device."""

from typing import NamedTuple

import torch

from skpatchsvdd._encoding import REACH, damp_windows
from skpatchsvdd._images import pixels_to_float
from skpatchsvdd._training.defects import damage_images
from skpatchsvdd._training.light import relight
from skpatchsvdd._utils import Draws, training_layout

# The paper's noise of a patch's colour and of its pixels.
_COLOUR_NOISE = 0.02

_PIXEL_NOISE = 0.02

# Two of the default patches wide: room for pairs in every direction.
_CROP_SIZE = 128

# Pixels by which the second view of a crop is shifted, at most, along each axis. Half
# of the crops are not: on fine textures a shift changes every pixel, and nothing would
# be left to recognise a damaged patch by.
SHIFT = 2

# Smallest change of a pixel, on the 0..1 scale, that counts as damage: ten grey levels
# of 255, which is clearly visible, and twice the noise of pixels.
_DAMAGE = 0.04


def draw_corners(n, shape, size, draws, seen=None):
    """Draw n squares of a size from a stack of images of this shape.

    With `seen`, rows and columns (n_pixels, 2) of the pixels to look at, each square
    holds one of them.

    Returns
    -------
    index : tensor of shape (n,)
        Which image.
    corner : tensor of shape (n, 2)
        Row and column of the top left pixel.
    """
    n_images, height, width, _ = shape
    index = draws.integers(0, n_images, (n,))
    if seen is not None:
        pixel = seen[draws.integers(0, len(seen), (n,))]
        corner = pixel - draws.integers(0, size, (n, 2))
        return index, clip_corners(corner, shape, size)
    rows = draws.integers(0, height - size + 1, (n,))
    cols = draws.integers(0, width - size + 1, (n,))
    return index, torch.stack([rows, cols], dim=1)


def clip_corners(corner, shape, size):
    """Move squares that stick out back into the image."""
    _, height, width, _ = shape
    rows = corner[:, 0].clamp(0, height - size)
    cols = corner[:, 1].clamp(0, width - size)
    return torch.stack([rows, cols], dim=1)


def add_noise(patches, draws):
    """Shift the colour of each patch (n, n_channels, height, width), and each pixel."""
    n, n_channels = patches.shape[:2]
    colour = draws.normal(_COLOUR_NOISE, (n, n_channels, 1, 1))
    return patches + colour + draws.normal(_PIXEL_NOISE, patches.shape)


class Crops(NamedTuple):
    """Two views of each of n crops.

    Attributes
    ----------
    first : tensor of shape (n, n_channels, size, size)
        The crops.
    second : tensor of shape (n, n_channels, size, size)
        The same with synthetic defects, half of them shifted by up to two pixels. Each
        view has a light and noise of its own.
    is_damaged : tensor of shape (n, 1, size, size)
        1 where the second view shows a defect, 0 elsewhere.
    is_seen : tensor of shape (n, 1, size, size) or None
        1 at pixels to look at, 0 elsewhere; None if all are.
    """

    first: torch.Tensor
    second: torch.Tensor
    is_damaged: torch.Tensor
    is_seen: torch.Tensor | None = None


class CropSampler:
    """Draws crops from images that live on one device.

    Parameters
    ----------
    images : tensor of shape (n_images, height, width, n_channels)
        Bytes, or floats on the 0..1 scale. Bytes are scaled crop by crop, so that a
        large training set takes a quarter of the memory.
    center : tensor of shape (height, width, n_channels) or (1, 1, 1)
        Subtracted from every crop at its position.
    generator : torch.Generator
        The only source of randomness, of the same device or of the CPU.
    patch_size : int
        A crop holds at least one such patch.
    light : float
        Fraction of slow changes of brightness that stays.
    roi : tensor of bool of shape (height, width) or None
        Pixels to look at, all if None; see `DenseEncoder`.
    fillings : Fillings or None
        Known defects, with which some of the synthetic ones are filled.
    """

    def __init__(
        self, images, center, generator, patch_size, light, roi=None, fillings=None
    ):
        self.images = images
        self.center = center.expand(images.shape[1:])
        self.device = images.device
        self.generator = generator
        self.crop_size = crop_size(images.shape[1:3], patch_size)
        self._light = light
        # Pixels around a crop that damping of light depends on.
        self._margin = REACH if light < 1 else 0
        self._draws = Draws(generator, images.device)
        self._fillings = fillings
        self._roi = None if roi is None else roi[:, :, None].float()
        self._seen = None if roi is None else roi.nonzero()

    def crops(self, n_crops):
        """Draw n crops and two views of each, the second with defects."""
        first, second, corners = self._draw_views(n_crops)
        damaged = damage_images(second, self._draws, self._fillings)
        change = (damaged - second).abs().amax(dim=1, keepdim=True)
        change = self._cut_margin(change)
        views = self._finish(torch.cat([first, damaged]), corners)
        is_seen = self._cut_seen(corners[:n_crops])
        is_damaged = (change > _DAMAGE).float()
        if is_seen is not None:
            is_damaged = is_damaged * self._cut_seen(corners[n_crops:])
        return Crops(*views.chunk(2), is_damaged, is_seen)

    def intact_crops(self, n_crops):
        """Draw n crops and two views of each, both without defects."""
        first, second, corners = self._draw_views(n_crops)
        views = self._finish(torch.cat([first, second]), corners)
        is_damaged = torch.zeros_like(views[:n_crops, :1])
        return Crops(*views.chunk(2), is_damaged, self._cut_seen(corners[:n_crops]))

    def _draw_views(self, n_crops):
        """Cut windows, crops with a margin, for both views; return all corners too."""
        shape = self.images.shape
        index, corner = self._draw_corners(n_crops)
        shift = self._draws.integers(-SHIFT, SHIFT + 1, (n_crops, 2))
        shift = shift * self._draws.integers(0, 2, (n_crops, 1))
        shifted = clip_corners(corner + shift, shape, self.crop_size)
        first, second = (self._windows(index, x) for x in (corner, shifted))
        return first, second, torch.cat([corner, shifted])

    def plain(self, n_crops):
        """Draw n crops with another light and noise, (n, n_channels, size, size)."""
        index, corner = self._draw_corners(n_crops)
        return self._finish(self._windows(index, corner), corner)

    def _draw_corners(self, n_crops):
        shape = self.images.shape
        return draw_corners(n_crops, shape, self.crop_size, self._draws, self._seen)

    def _cut_seen(self, corners):
        """Return which pixels of crops are to look at, (n, 1, size, size), or None."""
        if self._roi is None:
            return None
        return self._cut_margin(self._cut(self._roi, corners))

    def _cut_margin(self, windows):
        inner = slice(self._margin, self._margin + self.crop_size)
        return windows[:, :, inner, inner]

    def _finish(self, windows, corners):
        """Change the light, subtract the centre, damp slow changes, cut out."""
        windows = add_noise(relight(windows, self._draws), self._draws)
        windows = windows - self._cut(self.center, corners)
        if self._roi is not None:
            windows = windows * self._cut(self._roi, corners)
        if self._margin:
            image_size = self.images.shape[1:3]
            windows = damp_windows(windows, corners, image_size, self._light)
        return windows.contiguous(memory_format=training_layout(self.device))

    def _windows(self, index, corner):
        return self._cut(self.images, corner, index)

    def _cut(self, source, corner, index=None):
        """Cut windows out, with a margin that repeats the edge."""
        height, width = self.images.shape[1:3]
        along = torch.arange(
            -self._margin, self.crop_size + self._margin, device=self.device
        )
        rows = (corner[:, :1] + along).clamp(0, height - 1)[:, :, None]
        cols = (corner[:, 1:] + along).clamp(0, width - 1)[:, None]
        pixels = (rows, cols) if index is None else (index[:, None, None], rows, cols)
        return pixels_to_float(source[pixels]).permute(0, 3, 1, 2)


def crop_size(image_size, patch_size):
    """Size of square crops: two patches wide, with room to shift them if there is."""
    wanted = max(_CROP_SIZE, 2 * patch_size)
    return max(min(wanted, min(image_size) - SHIFT), patch_size)
