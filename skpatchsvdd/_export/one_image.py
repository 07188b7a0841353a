"""Inspection of one image, in operations that a graph can hold."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._export.search import GraphIndex
from skpatchsvdd._images import enlarge_roi, pixels_to_float
from skpatchsvdd._scoring import DAMAGED, DeviceBank, inspect_new


class OneImage(nn.Module):
    """Bytes of an image in; score, p-value, verdict, map and mask out.

    The `DeviceBank` has indexes and variations that a graph can hold, see
    `make_graph_bank`; images come in, and maps out, in the `input_size`.
    """

    def __init__(self, bank, calibration, offset, input_size):
        super().__init__()
        self._bank = bank
        self._offset = offset
        size = bank.encoder.image_size
        self._shrink = _make_resize(input_size, size)
        self._enlarge = _make_resize(size, input_size)
        roi = bank.encoder.roi
        self._roi = None
        if roi is not None and tuple(size) != tuple(input_size):
            self._roi = torch.from_numpy(enlarge_roi(roi, input_size))
        scores = np.unique(calibration.used_scores)
        p_values = calibration.p_values(np.append(-np.inf, scores))
        self._scores, self._p_values = map(torch.from_numpy, (scores, p_values))

    def forward(self, image):
        """Inspect an image, (height, width, n_channels)."""
        pixels = self._shrink(pixels_to_float(image[None]).permute(0, 3, 1, 2))
        found = inspect_new(pixels.permute(0, 2, 3, 1), self._bank)
        (one_map,), (score,), *logits = found
        score = score.double()
        p_value = self._p_values[(self._scores <= score).sum()]
        verdict = torch.where(score >= self._offset, 1, -1)
        one_map = self._show(one_map)
        mask = one_map > -self._offset
        for (damage,) in logits:
            is_damaged = (self._show(damage) > 0) & (one_map > DAMAGED * -self._offset)
            mask = is_damaged | (mask & ~is_damaged.any())
        numbers = torch.arange(one_map.numel()).view(one_map.shape)
        mask = mask | ((numbers == one_map.argmax()) & ~mask.any())
        return score, p_value, verdict, one_map, mask & (verdict < 0)

    def _show(self, values):
        """Bring values of pixels to the size of the image that came in."""
        values = self._enlarge(values)
        return values if self._roi is None else torch.where(self._roi, values, 0.0)


def _make_resize(old, new):
    """Return resizing with anti-aliasing: as it is linear, two products of matrices."""
    if tuple(old) == tuple(new):
        return lambda x: x
    down, across = (_resize_axis(*pair) for pair in zip(old, new, strict=True))
    return lambda x: down @ x @ across.T


def _resize_axis(old, new):
    """Return the weight of each old pixel in each new one, (new, old)."""
    single = torch.eye(old)[None, None]
    return F.interpolate(single, (new, old), mode="bilinear", antialias=True)[0, 0]


class _GraphVariation:
    """Local normal variation, compared with all rows, in place of `Variation`."""

    def __init__(self, variation):
        self._regress = variation.make_plain()
        self.typical, self.large = variation.typical, variation.large

    def measure(self, features, left_out):
        return self._regress(features.flatten(0, 1)).view(features.shape[:2])


def make_graph_bank(fitted, encoder):
    """Return a `DeviceBank` on the CPU whose operations a graph can hold."""
    variations = fitted.variations
    if variations is not None:
        variations = [_GraphVariation(x) for x in variations]
    bank = fitted.change(
        indexes=[GraphIndex(index.bank()) for index in fitted.indexes],
        variations=variations,
        known=[],  # no image is recognized
        pictures=None,
    )
    setting = fitted.setting._replace(device=torch.device("cpu"))
    return DeviceBank(setting.make(encoder), bank)
