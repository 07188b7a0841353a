"""Checks of a training: how well synthetic defects are found, the best weights."""

import copy

import numpy as np
import torch

from skpatchsvdd._bank import ExactIndex, collect_banks
from skpatchsvdd._encoding import find_units, largest_patch
from skpatchsvdd._images import pixels_to_float, stack_images
from skpatchsvdd._scoring import DeviceBank, FittedBank, score_images
from skpatchsvdd._training.crops import relight
from skpatchsvdd._training.defects import damage_images
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


class Watch:
    """Checks an encoder now and then while it is trained, and keeps the best weights.

    ``check(encoder)`` gives a score, high is good, every so many steps; `patience` is
    the number of checks without a better one after which to stop, None never stops.
    `first_encoder` and `best_encoder` are copies on the CPU from the first look and
    from the best one, as ``finish(encoder)`` makes them of what is trained; `kept` is
    the step whose weights were kept in the end.
    """

    def __init__(self, check, every, patience=None):
        self.steps, self.scores = [], []
        self.first_encoder = self.best_encoder = None
        self.kept = 0
        self.finish = copy.deepcopy
        self._check = check
        self._every = every
        self._patience = patience

    @property
    def best(self):
        """Index of the best score among all checks; the later one of equals."""
        return len(self.scores) - 1 - int(np.argmax(self.scores[::-1]))

    def forget_images(self):
        """Let go of the check, and with it of the images it looks at."""
        self._check, self.finish = None, copy.deepcopy

    def is_due(self, step):
        """Whether to look after this many steps."""
        return step % self._every == 0

    def look(self, encoder, step):
        """Check an encoder; return whether training should stop."""
        encoder = self.finish(encoder)
        score = self._check(encoder)  # first: an interrupt leaves nothing half done
        self.steps.append(step)
        self.scores.append(score)
        if self.best == len(self.scores) - 1:
            self.best_encoder = encoder
        if self.first_encoder is None:
            self.first_encoder = self.best_encoder
        if self._patience is None:
            return False
        return len(self.scores) - 1 - self.best >= self._patience


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
