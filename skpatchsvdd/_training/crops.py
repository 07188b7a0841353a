"""Crops for dense training: relit, shifted and damaged, drawn on the device."""

from typing import NamedTuple

import torch

from skpatchsvdd._encoding import REACH, damp_windows
from skpatchsvdd._images import pixels_to_float
from skpatchsvdd._training.defects import damage_images
from skpatchsvdd._utils import Draws, training_layout

# The paper's noise of a patch's colour and of its pixels.
_COLOUR_NOISE, _PIXEL_NOISE = 0.02, 0.02
# Random change of brightness in training, at most, on the 0..1 scale: eight grey
# levels of 255.
_BRIGHTNESS = 0.03
# Two of the default patches wide: room for pairs in every direction.
_CROP_SIZE = 128
# Pixels by which the second view of a crop is shifted, at most, along each axis. Half
# of the crops are not: on fine textures a shift changes every pixel, and nothing would
# be left to recognise a damaged patch by.
_SHIFT = 2
# Smallest change of a pixel, on the 0..1 scale, that counts as damage: ten grey levels
# of 255, which is clearly visible, and twice the noise of pixels.
_DAMAGE = 0.04


class Sampler:
    """Draws squares from images that live on one device, by one generator.

    Images (n_images, height, width, n_channels) are bytes, or floats on the 0..1 scale.
    Bytes are scaled square by square, so that a large training set takes a quarter of
    the memory. `center`, (height, width, n_channels) or (1, 1, 1), is subtracted. With
    a `roi` (height, width) of the pixels to look at, all others are the centre's, and
    squares hold one of them.
    """

    def __init__(self, images, center, generator, roi=None):
        self.images = images
        self.center = center.expand(images.shape[1:])
        self.device = images.device
        self.draws = Draws(generator, images.device)
        self._roi = None if roi is None else roi[:, :, None].float()
        self._seen = None if roi is None else roi.nonzero()

    def _draw_corners(self, n, size):
        """Draw squares: the index of their image (n,), and their top left (n, 2)."""
        n_images, height, width, _ = self.images.shape
        index = self.draws.integers(0, n_images, (n,))
        if self._seen is not None:
            pixel = self._seen[self.draws.integers(0, len(self._seen), (n,))]
            corner = pixel - self.draws.integers(0, size, (n, 2))
            return index, self._clip(corner, size)
        rows = self.draws.integers(0, height - size + 1, (n,))
        cols = self.draws.integers(0, width - size + 1, (n,))
        return index, torch.stack([rows, cols], dim=1)

    def _clip(self, corner, size):
        """Move squares that stick out back into the image."""
        _, height, width, _ = self.images.shape
        rows = corner[:, 0].clamp(0, height - size)
        cols = corner[:, 1].clamp(0, width - size)
        return torch.stack([rows, cols], dim=1)

    def _cut(self, source, corner, size, index=None, margin=0):
        """Cut squares out, with a margin that repeats the edge, (n, c, size, size)."""
        height, width = self.images.shape[1:3]
        along = torch.arange(-margin, size + margin, device=self.device)
        rows = (corner[:, :1] + along).clamp(0, height - 1)[:, :, None]
        cols = (corner[:, 1:] + along).clamp(0, width - 1)[:, None]
        pixels = (rows, cols) if index is None else (index[:, None, None], rows, cols)
        return pixels_to_float(source[pixels]).permute(0, 3, 1, 2)


def relight(images, draws):
    """Make each image (n, n_channels, height, width) lighter or darker.

    Contrast stays as it is: features that do not see it take a dull image for one that
    is only lit differently.
    """
    return images + draws.uniform(-_BRIGHTNESS, _BRIGHTNESS, (len(images), 1, 1, 1))


def add_noise(patches, draws):
    """Shift the colour of each patch (n, n_channels, height, width), and each pixel."""
    n, n_channels = patches.shape[:2]
    colour = draws.normal(_COLOUR_NOISE, (n, n_channels, 1, 1))
    return patches + colour + draws.normal(_PIXEL_NOISE, patches.shape)


class Crops(NamedTuple):
    """Two views of each of n crops, each with a light and noise of its own.

    Half of the second ones are shifted by up to two pixels. 1 says where they show a
    defect, and which pixels are to be looked at, None for all; 0 says no.
    """

    first: torch.Tensor  # (n, n_channels, size, size)
    second: torch.Tensor  # (n, n_channels, size, size)
    is_damaged: torch.Tensor  # (n, 1, size, size)
    is_seen: torch.Tensor | None = None  # (n, 1, size, size)


class CropSampler(Sampler):
    """Draws crops, each of at least one patch.

    The fraction `light` of slow changes of brightness stays. `fillings` are known
    defects, with which some of the synthetic ones are filled.
    """

    def __init__(
        self, images, center, generator, patch_size, light, roi=None, fillings=None
    ):
        super().__init__(images, center, generator, roi)
        self.crop_size = crop_size(images.shape[1:3], patch_size)
        self._light = light
        # Pixels around a crop that damping of light depends on.
        self._margin = REACH if light < 1 else 0
        self._fillings = fillings

    def crops(self, n_crops, damages=True):
        """Draw n crops and two views of each, the second with defects if `damages`."""
        index, corner = self._draw_corners(n_crops, self.crop_size)
        shift = self.draws.integers(-_SHIFT, _SHIFT + 1, (n_crops, 2))
        shift = shift * self.draws.integers(0, 2, (n_crops, 1))
        shifted = self._clip(corner + shift, self.crop_size)
        first, second = (self._window(self.images, x, index) for x in (corner, shifted))
        damaged = second
        if damages:
            damaged = damage_images(second, self.draws, self._fillings)
        change = (damaged - second).abs().amax(dim=1, keepdim=True)
        is_damaged = (self._cut_margin(change) > _DAMAGE).float()
        views = torch.cat([first, damaged])
        views = self._finish(views, torch.cat([corner, shifted]))
        if self._roi is None:
            return Crops(*views.chunk(2), is_damaged)
        is_seen, is_seen_again = (
            self._cut_margin(self._window(self._roi, x)) for x in (corner, shifted)
        )
        return Crops(*views.chunk(2), is_damaged * is_seen_again, is_seen)

    def plain(self, n_crops):
        """Draw n crops with another light and noise, (n, n_channels, size, size)."""
        index, corner = self._draw_corners(n_crops, self.crop_size)
        return self._finish(self._window(self.images, corner, index), corner)

    def _cut_margin(self, windows):
        inner = slice(self._margin, self._margin + self.crop_size)
        return windows[:, :, inner, inner]

    def _finish(self, windows, corners):
        """Change the light, subtract the centre, damp slow changes, cut out."""
        windows = add_noise(relight(windows, self.draws), self.draws)
        windows = windows - self._window(self.center, corners)
        if self._roi is not None:
            windows = windows * self._window(self._roi, corners)
        if self._margin:
            image_size = self.images.shape[1:3]
            windows = damp_windows(windows, corners, image_size, self._light)
        return windows.contiguous(memory_format=training_layout(self.device))

    def _window(self, source, corner, index=None):
        return self._cut(source, corner, self.crop_size, index, self._margin)


def crop_size(image_size, patch_size):
    """Size of square crops: two patches wide, with room to shift them if there is."""
    wanted = max(_CROP_SIZE, 2 * patch_size)
    return max(min(wanted, min(image_size) - _SHIFT), patch_size)
