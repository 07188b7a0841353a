"""Pairs of patches for training, drawn and cut out on the device."""

import torch

from skpatchsvdd._draws import Draws
from skpatchsvdd._images import pixels_to_float

# The eight neighbours of a 3 x 3 grid, as (down, right).
DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))
_COLOUR_NOISE = 0.02
_PIXEL_NOISE = 0.02


class PairSampler:
    """Draws pairs of patches from images that live on one device.

    Parameters
    ----------
    images : tensor of shape (n_images, height, width, n_channels)
        Bytes, or floats on the 0..1 scale. Bytes are scaled patch by patch, so that a
        large training set takes a quarter of the memory.
    center : tensor of shape (height, width, n_channels)
        Subtracted from every patch at its place.
    generator : torch.Generator
        A generator of the same device; the only source of randomness.
    """

    def __init__(self, images, center, generator):
        self.images = images
        self.center = center
        self.generator = generator
        self.device = images.device
        self.directions = torch.tensor(DIRECTIONS, device=self.device)
        self._draws = Draws(generator)

    def position_pairs(self, n_pairs, patch_size):
        """Draw neighbouring patches and the direction from the first to the second.

        The second patch lies at least 3K/4 and less than K pixels away along each axis
        the direction moves on, clipped to the image; both get noise of their own.

        Returns
        -------
        first, second : tensors of shape (n_pairs, n_channels, K, K)
        direction : tensor of shape (n_pairs,)
            Index into the eight directions.
        """
        index, corner = self._draw_corners(n_pairs, patch_size)
        direction = self._draws.integers(0, len(DIRECTIONS), (n_pairs,))
        nearest = 3 * patch_size // 4
        step = self._draws.integers(nearest, patch_size, (n_pairs, 2))
        moved = self._clip(corner + self.directions[direction] * step, patch_size)
        first = add_noise(self.crop(index, corner, patch_size), self._draws)
        second = add_noise(self.crop(index, moved, patch_size), self._draws)
        return first, second, direction

    def jitter_pairs(self, n_pairs, patch_size):
        """Draw patches and others shifted by up to K/32 pixels, clipped to the image.

        Returns
        -------
        patches, shifted : tensors of shape (n_pairs, n_channels, K, K)
        """
        index, corner = self._draw_corners(n_pairs, patch_size)
        reach = patch_size // 32
        width = 2 * reach + 1
        # One draw over all shifts but (0, 0), which is the middle of the square.
        cell = self._draws.integers(0, width * width - 1, (n_pairs,))
        cell = cell + (cell >= width * width // 2).to(cell.dtype)
        rows = torch.div(cell, width, rounding_mode="floor")
        shift = torch.stack([rows, cell % width], dim=1) - reach
        moved = self._clip(corner + shift, patch_size)
        return (
            self.crop(index, corner, patch_size),
            self.crop(index, moved, patch_size),
        )

    def patches(self, n_patches, patch_size):
        """Draw patches anywhere, shape (n_patches, n_channels, K, K)."""
        return self.crop(*self._draw_corners(n_patches, patch_size), patch_size)

    def crop(self, index, corner, patch_size):
        """Cut patches out of the images `index` at their top left `corner`."""
        along = torch.arange(patch_size, device=self.device)
        rows = corner[:, 0, None, None] + along[:, None]  # (n, K, 1)
        cols = corner[:, 1, None, None] + along  # (n, 1, K)
        pixels = self.images[index[:, None, None], rows, cols]  # (n, K, K, c)
        patches = pixels_to_float(pixels) - self.center[rows, cols]
        return patches.permute(0, 3, 1, 2)  # (n, c, K, K)

    def _draw_corners(self, n, patch_size):
        return draw_corners(n, self.images.shape, patch_size, self._draws)

    def _clip(self, corner, patch_size):
        return clip_corners(corner, self.images.shape, patch_size)


def draw_corners(n, shape, size, draws):
    """Draw n squares of a size from a stack of images of this shape.

    Returns
    -------
    index : tensor of shape (n,)
        Which image.
    corner : tensor of shape (n, 2)
        Row and column of the top left pixel.
    """
    n_images, height, width, _ = shape
    index = draws.integers(0, n_images, (n,))
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
