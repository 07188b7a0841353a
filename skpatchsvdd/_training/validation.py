"""Checks of a training on images: how well synthetic defects are found."""

import numpy as np
import torch

from skpatchsvdd._bank import ExactIndex, collect_banks
from skpatchsvdd._encoding import find_units, largest_patch
from skpatchsvdd._images import pixels_to_float, stack_images
from skpatchsvdd._scoring import DeviceBank, FittedBank, score_images
from skpatchsvdd._training.crops import damage_images, relight
from skpatchsvdd._utils import Draws
from skpatchsvdd.metrics import detection_auroc

# Images of the small bank of a check, few since it is built at every check.
_N_BANK = 24
# Damaged copies of each image that is looked at.
_N_DAMAGED = 2
# Size of the part of large images that is looked at.
_LARGEST = 512


class DefectCheck:
    """Measures how well an encoder separates synthetic defects, without real ones.

    Some normal images, copies in another light and copies with synthetic defects are
    inspected against a small bank of other images, at wide strides; of large images
    only the middle, or that of the pixels to look at. The score is the area under the
    ROC curve of separating the damaged copies from all others: 0.5 says that a change
    of light looks like a defect, or that all images look the same.

    `chosen` are indices of the images to look at; the bank is made of others.
    ``make_copies(pixels)`` gives copies of images on the 0..1 scale, normal and damaged
    ones, and their labels, 1 and -1.
    """

    def __init__(self, images, chosen, setting, options, make_copies):
        size = images.image_shape[:2]
        largest = largest_patch(size) if options.embeds else options.patch_size
        self._window = _choose_window(size, setting.roi, largest)
        images = images.crop(self._window)
        others = np.setdiff1d(np.arange(len(images)), chosen)
        spaced = np.linspace(0, len(others) - 1, min(_N_BANK, len(others))).astype(int)
        self._bank = images.take(others[spaced])
        # How much positions count is seen between images: two at least.
        self._compared = self._bank if len(self._bank) > 1 else images
        copies, self._labels = make_copies(pixels_to_float(images.take(chosen).pixels))
        self._images = stack_images(copies)
        self._setting = setting
        self._options = options

    def __call__(self, encoder):
        """Score an encoder, on any device; 1 is best."""
        strides = tuple(k // 4 for k in encoder.patch_sizes)
        if encoder.is_pretrained:
            strides = encoder.strides
        dense = self._setting.within(self._window, strides).make(encoder)
        rng = np.random.RandomState(0)  # the same encoder scores the same
        weight = self._options.position_weight
        units = find_units(dense, self._compared, weight, rng)
        banks = collect_banks(dense, self._bank, units, None, rng)
        indexes = [ExactIndex(x) for x in banks]
        bank = FittedBank(setting=self._setting, indexes=indexes, units=units)
        scores = score_images(self._images, DeviceBank(dense, bank))
        if not np.isfinite(scores).all():
            return 0.0
        return detection_auroc(self._labels, scores)


def _choose_window(image_size, roi, patch_size):
    """Return the window, a pair of slices, of images that is looked at."""
    if roi is None:
        starts = [max(length - _LARGEST, 0) // 2 for length in image_size]
        return tuple(slice(start, start + _LARGEST) for start in starts)
    pixels = np.argwhere(roi)
    low, high = pixels.min(axis=0), pixels.max(axis=0) + 1
    size = np.clip(high - low, patch_size, np.minimum(image_size, _LARGEST))
    away = abs(pixels - (low + high) / 2).max(axis=1)
    start = np.clip(pixels[away.argmin()] - size // 2, 0, image_size - size)
    return tuple(map(slice, start, start + size))


def make_copies(pixels, generator):
    """Return images as they are, relit and damaged as in training, and their labels."""
    draws = Draws(generator)
    plain = torch.from_numpy(np.array(pixels)).permute(0, 3, 1, 2)
    damaged = [damage_images(plain, draws) for _ in range(_N_DAMAGED)]
    copies = torch.cat([plain, relight(plain, draws), *damaged])
    labels = np.repeat([1, -1], [2 * len(plain), _N_DAMAGED * len(plain)])
    return np.ascontiguousarray(copies.permute(0, 2, 3, 1).numpy()), labels
