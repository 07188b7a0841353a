"""Crops for dense training: relit, shifted and damaged, drawn on the device."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._encoding import REACH, damp_windows
from skpatchsvdd._images import pixels_to_float
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
# Every image gets one shape for certain and the others with even odds.
_N_SHAPES = 3
# From specks and thin scars to patches of 35 x 35 pixels, half to wholly opaque, with
# tints that are seen for certain; chosen among others by bench_quality.py.
_AREA = (12.0, 1200.0)  # pixels
_ASPECT = 20.0
_OPACITY = (0.5, 1.0)
_TINT = (0.1, 0.5)
_COLOUR = 0.05  # deviation of a tint from channel to channel
_SMOOTHED = 9  # pixels of the blur: fine texture goes, form stays
# By how much the image moves, down and right, where a defect is a small displacement.
_MOVES = ((4, 0), (0, 4), (-3, 3))
# Kinds of filling: a piece of another image; the same image upside down, mirrored,
# both, from far away, blurred, or moved as above; and tints.
_OTHER, _UPSIDE_DOWN, _MIRRORED, _TURNED, _FAR, _BLUR, _MOVED = range(7)
_N_PIECES = _MOVED + len(_MOVES)
_N_TINTS = 2
# The fraction of synthetic defects that are filled with a known one: the others teach
# what nobody has seen yet.
_KNOWN = 0.5
# Pixels of each mask that fillings are cut around: as many for large masks as for
# small ones, so that no known defect is seen more often than others.
_N_PLACES = 1024


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


def damage_images(images, draws, known=None):
    """Put synthetic defects on images.

    A defect is an ellipse or a rectangle of any direction, from a speck or a thin scar
    to a patch of 35 x 35 pixels, filled with a piece of the same image from elsewhere,
    mirrored or turned round, with a piece of another image, with the image's own blur,
    with the image moved by a few pixels, or with a lighter or darker tint; some, where
    defects are known, with these. Images, (n, n_channels, height, width), are on the
    0..1 scale.
    """
    n = len(images)
    source = _Source(images)
    damaged = images
    for i in range(_N_SHAPES):
        opacity = draws.uniform(*_OPACITY, (n, 1, 1, 1))
        if i > 0:
            opacity = opacity * draws.integers(0, 2, (n, 1, 1, 1))
        shape, centers = _draw_shapes(images.shape, draws)
        filling = source.draw_fillings(draws)
        if known is not None:
            filling = known.replace_some(filling, centers, draws)
        damaged = torch.lerp(damaged, filling, shape * opacity)
    return damaged


class _Source:
    """What defects are filled with: images, and blurred ones."""

    def __init__(self, images):
        self._images = images
        pixels = torch.cat([images, _smooth(images)]).permute(0, 2, 3, 1)
        self._pixels = pixels.contiguous()  # (2 * n, height, width, n_channels)

    def draw_fillings(self, draws):
        """Draw for each image what a shape is filled with."""
        n, n_channels = self._images.shape[:2]
        one = (n, 1, 1, 1)
        sign = 2 * draws.integers(0, 2, one) - 1
        tint = sign * draws.uniform(*_TINT, one)
        tint = tint + draws.normal(_COLOUR, (n, n_channels, 1, 1))
        kind = draws.integers(0, _N_PIECES + _N_TINTS, (n,))
        piece = self._cut_pieces(kind)
        return torch.where((kind < _N_PIECES).view(one), piece, self._images + tint)

    def _cut_pieces(self, kind):
        """Return, for each image, the piece of this kind."""
        n, _, height, width = self._images.shape
        image = torch.arange(n, device=kind.device)
        other = (image - 1) % n  # of the batch
        image = torch.where(kind == _OTHER, other, image)
        image = torch.where(kind == _BLUR, image + n, image)
        moves = {_FAR: (height // 2, width // 3)}
        moves |= {_MOVED + i: move for i, move in enumerate(_MOVES)}
        down, across = (
            sum((kind == k) * move[axis] for k, move in moves.items())
            for axis in (0, 1)
        )
        rows = _trace(height, (kind == _UPSIDE_DOWN) | (kind == _TURNED), down)
        cols = _trace(width, (kind == _MIRRORED) | (kind == _TURNED), across)
        pixels = self._pixels[image[:, None, None], rows[:, :, None], cols[:, None]]
        return pixels.permute(0, 3, 1, 2)


def _trace(length, is_flipped, move):
    """Return where each row or column comes from, (n, length)."""
    place = torch.arange(length, device=move.device)
    moved = (place - move[:, None]) % length
    return torch.where(is_flipped[:, None], length - 1 - place, moved)


def _smooth(images):
    half = _SMOOTHED // 2
    x = F.pad(images, (half,) * 4, mode="reflect")
    return F.avg_pool2d(F.avg_pool2d(x, (_SMOOTHED, 1), 1), (1, _SMOOTHED), 1)


def _draw_shapes(image_shape, draws):
    """Draw a soft-edged shape for each image, and where its middle is.

    Shapes (n, 1, height, width) are in 0..1, centers (n, 2) rows and columns.
    """
    n, _, height, width = image_shape
    one = (n, 1, 1)
    sides = (height, width)
    rows, cols = (torch.arange(x, device=draws.device) + 0.5 for x in sides)
    row, col = (draws.uniform(0, x, one) for x in sides)
    down, right = rows[:, None] - row, cols - col
    angle = draws.uniform(0, math.pi, one)
    along = right * angle.cos() + down * angle.sin()
    beside = down * angle.cos() - right * angle.sin()
    area = draws.uniform(*map(math.log, _AREA), one).exp()
    aspect = draws.uniform(-math.log(_ASPECT), math.log(_ASPECT), one).exp()
    half_length = (area * aspect).sqrt() / 2
    half_width = (area / aspect).sqrt() / 2
    along, beside = along.abs() / half_length, beside.abs() / half_width
    is_round = draws.integers(0, 2, one) > 0
    reaches = torch.hypot(along, beside), torch.maximum(along, beside)
    reach = torch.where(is_round, *reaches)
    depth = (1 - reach) * torch.minimum(half_length, half_width)  # in pixels
    centers = torch.cat([row, col], dim=1)[:, :, 0]
    return (depth + 0.5).clamp(0, 1)[:, None], centers


def take_masked(defective, roi=None):
    """Return those `DefectiveImages` of which it is known where they are defective.

    What a `roi` hides is no part of a mask. None if there are none.
    """
    if defective is None:
        return None
    masks = defective.masks
    defective = replace(defective, stack=defective.stack.reduce())
    if roi is not None:
        masks = [None if mask is None else mask & roi for mask in masks]
        defective = replace(defective, stack=defective.stack.hide_outside(roi))
    has_mask = [mask is not None and mask.any() for mask in masks]
    masked = replace(defective, masks=masks).take(np.flatnonzero(has_mask))
    return masked if len(masked) > 0 else None


def draw_places(masks, rng):
    """Draw pixels of each mask, as many of each, (n_masks, n_places, 2)."""
    pixels = [np.argwhere(mask) for mask in masks]
    return np.stack([x[rng.randint(len(x), size=_N_PLACES)] for x in pixels])


class Fillings:
    """Fills synthetic defects with known ones.

    `pixels` (n_images, height, width, n_channels) are bytes, or floats on the 0..1
    scale; `places` (n_images, n_places, 2) rows and columns of defective ones.
    """

    def __init__(self, pixels, places):
        self._pixels = pixels
        self._places = places

    def replace_some(self, fillings, centers, draws):
        """Replace half of the fillings (n, n_channels, height, width) by known defects.

        These come to the middle of the synthetic ones, `centers` (n, 2).
        """
        is_known = draws.uniform(0, 1, (len(fillings), 1, 1, 1)) < _KNOWN
        return torch.where(is_known, self.cut(fillings.shape, centers, draws), fillings)

    def cut(self, shape, centers, draws):
        """Cut known defects out, with what is around them, flipped at random.

        A random defective pixel of each comes to its centre, (n, 2).
        """
        n, _, *lengths = shape
        n_images, n_places, _ = self._places.shape
        image = draws.integers(0, n_images, (n,))
        place = self._places[image, draws.integers(0, n_places, (n,))]
        direction = 2 * draws.integers(0, 2, (n, 2)) - 1
        parts = (place.T, centers.long().T, direction.T, lengths)
        axes = zip(*parts, self._pixels.shape[1:3], strict=True)
        rows, cols = (_trace_mirrored(*axis) for axis in axes)
        pixels = self._pixels[image[:, None, None], rows[:, :, None], cols[:, None]]
        return pixels_to_float(pixels).permute(0, 3, 1, 2)


def _trace_mirrored(place, center, direction, length, source_length):
    """Say where rows or columns come from, (n, length); images go on as mirrored."""
    away = torch.arange(length, device=place.device) - center[:, None]
    along = (place[:, None] + direction[:, None] * away) % (2 * source_length)
    return torch.minimum(along, 2 * source_length - 1 - along)
