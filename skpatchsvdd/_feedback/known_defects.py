"""Patches of known defects: a second, small bank, and what is raised by being near it.

Of a patch x with the distance d(x) to the nearest normal patch, and a patch k of a
known defect, the ratio d(x) / |x - k| says how much nearer x is to the defect than to
what is normal. Normal patches have such ratios too, each measured against the bank
without its own image: the largest of them is the limit of k. What counts is the largest
ratio of x in units of these limits, and that in units of what half of the normal images
reach, each by limits to which it has not contributed. So a patch is raised if it is
nearer to a known defect than patches of most normal images are, in units of what is
usual on both sides, and by how much follows from the normal images alone.
"""

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._bank import as_tensor
from skpatchsvdd._utils import Saved, as_columns, expand, halve_squares

# What this fraction of the normal images reach does not raise anything; patches of the
# others are raised a little, and thresholds come from scores with that. Chosen, as the
# power, on the figures of benchmarks/bench_feedback.py.
_REACHED = 0.5
# The power of the ratio by which distances are raised, and the ratio from which on
# nothing more is: a copy of a known defect would have an infinite one.
_POWER, _LARGEST = 2, 4.0
MOST_RAISED = _LARGEST**_POWER
# The least limit, in ratios: images that are all the same have none.
_LEAST = 1e-6
# Products held at a time, (patches, rows).
_PRODUCTS = 2**24
# Images whose patches are searched for at a time.
_N_IMAGES = 16


class DefectBank(NamedTuple):
    """Patches of known defects of one scale, and the limits of normal patches."""

    rows: np.ndarray  # features, float32, (n_rows, n_features)
    # Where each row is from: a defective image, and a patch in it, (n_rows, 2).
    places: np.ndarray
    # The largest ratio of normal patches, float32, and that of all owners but the one
    # who has the largest, (2, n_rows).
    limits: np.ndarray
    holders: np.ndarray  # who has the largest, (n_rows,)
    # The largest ratio of the patches of each image, float32, in units of the limits of
    # other owners than its own, and the numbers of these, (n_images,).
    peaks: np.ndarray
    owners: np.ndarray

    def limit_peaks(self, owner):
        """Return what normal images reach, all but those of an owner; -1 is nobody."""
        others = self.peaks[self.owners != owner]
        peaks = others if len(others) else self.peaks
        return max(float(np.quantile(peaks, _REACHED)), 1.0)


@dataclass(eq=False)
class KnownDefects(Saved):
    """What is known of defects, at every scale."""

    banks: list  # a `DefectBank` for each scale
    known: list  # digests of the defective images, bytes
    kinds: list  # what each of them shows, str
    files: list  # their paths, or None
    _on_device: dict = field(default_factory=dict, init=False, repr=False)

    def _unsaved(self):
        return {"_on_device": {}}

    def measure(self, scale, features, left_out):
        """Return how far patches of a scale are from known defects, times the limits.

        A patch is raised if it is farther than that from all normal patches. Takes
        `features`, float32, (n_images, n_patches, n_features), on any device, and for
        each image the owner, or -1, that has no part in the limits. Returns (n_images,
        n_patches).
        """
        key = scale, features.device
        if key not in self._on_device:
            self._on_device[key] = _DefectSearch(self.banks[scale], features.device)
        return self._on_device[key].measure(features, left_out)

    def bound_raises(self):
        """Return by how much each image is raised at most, (n_scales, n_images)."""
        raises = []
        for bank in self.banks:
            limits = {owner: bank.limit_peaks(owner) for owner in set(bank.owners)}
            limits = [limits[owner] for owner in bank.owners]
            raises.append(np.clip(bank.peaks / limits, 1, _LARGEST) ** _POWER)
        return np.array(raises)


def raise_distances(distances, near):
    """Raise the distances of patches that are nearer to known defects.

    `near` is what `KnownDefects.measure` gives. A larger distance stays larger, so that
    a bound of a distance becomes one of the raised distance.
    """
    # What is no distance at all, as that of a copy of a normal patch, is not raised.
    ratio = torch.where(distances > 0, distances / near, 0.0)
    return distances * ratio.clamp(1.0, _LARGEST).pow(_POWER)


class _DefectSearch:
    """A bank of known defects on a device."""

    def __init__(self, bank, device):
        self._bank = bank
        self._rows = as_tensor(bank.rows).to(device)
        self._origin = self._rows.mean(dim=0)
        self._columns = as_columns(self._rows - self._origin)
        self._half_squares = halve_squares(self._rows - self._origin)
        limits = as_tensor(bank.limits).to(device).clamp(min=_LEAST)
        self._largest, self._second = limits
        self._holders = as_tensor(bank.holders).to(device)
        self._weights = (bank.limit_peaks(-1) * self._largest).square()

    def measure(self, features, left_out):
        # Image by image, so that no other image matters.
        weights = map(self._weigh_without, left_out)
        pairs = zip(features, weights, strict=True)
        return torch.stack([self._measure_image(*pair) for pair in pairs])

    def _measure_image(self, features, weights):
        """Return the least product of distance and limit, (n_patches,)."""
        found = []
        for part in features.split(max(_PRODUCTS // len(weights), 1)):
            centered = part - self._origin
            halves = expand(self._half_squares, centered, self._columns)
            halves = (halves + halve_squares(centered)[:, None]).clamp(min=0)
            nearest = (halves * weights).argmin(dim=1)
            # By the difference: an expanded square of what is near is a rounding error.
            squares = (part - self._rows[nearest]).square().sum(dim=1)
            found.append((squares * weights[nearest]).sqrt())
        return torch.cat(found)

    def _weigh_without(self, owner):
        if owner < 0:
            return self._weights
        limits = torch.where(self._holders == owner, self._second, self._largest)
        return (self._bank.limit_peaks(owner) * limits).square()


def measure_limits(rows, places, index, owners, device):
    """Measure how near normal patches come to known defects, as a `DefectBank`.

    At one scale, whose index holds the normal patches of images of `owners`, or those
    that a reduced bank keeps, the least usual ones among them.
    """
    bank, on_device = index.view_bank(), torch.from_numpy(rows).to(device)
    images, counts = np.unique(bank.places[:, 0], return_counts=True)
    ratios = np.zeros((len(owners), len(rows)), dtype=np.float32)
    by_image = np.argsort(bank.places[:, 0], kind="stable")
    parts = np.split(by_image, counts.cumsum()[:-1])
    for first, last in _find_runs(counts):
        features = torch.from_numpy(bank.rows[np.stack(parts[first:last])]).to(device)
        chosen = images[first:last]
        distances = index.query(features, owners[chosen].tolist())
        for image, *patches in zip(chosen, features, distances, strict=True):
            ratios[image] = _find_ratios(*patches, on_device).cpu().numpy()
    of_owner = np.zeros((max(owners.max() + 1, 2), len(rows)), dtype=np.float32)
    np.maximum.at(of_owner, owners, ratios)
    order = np.argsort(of_owner, axis=0)
    holders = order[-1]
    limits = np.take_along_axis(of_owner, order[[-1, -2]], axis=0)
    is_holder = owners[:, None] == holders
    others = np.maximum(np.where(is_holder, limits[1], limits[0]), _LEAST)
    peaks = (ratios / others).max(axis=1)
    return DefectBank(rows, places, limits, holders, peaks, owners)


def _find_runs(sizes):
    """Yield starts and ends of runs of equal sizes, of a few images at most."""
    starts = [0, *(np.flatnonzero(np.diff(sizes)) + 1), len(sizes)]
    for start, end in itertools.pairwise(starts):
        for first in range(start, end, _N_IMAGES):
            yield first, min(first + _N_IMAGES, end)


def _find_ratios(features, distances, rows):
    """Return the largest ratio of some patches to each row, (n_rows,)."""
    largest = torch.zeros(len(rows), device=rows.device)
    size = max(_PRODUCTS // len(rows), 1)
    pairs = zip(features.split(size), distances[:, None].split(size), strict=True)
    for patches, from_normal in pairs:
        away = torch.cdist(patches, rows, compute_mode="donot_use_mm_for_euclid_dist")
        ratios = from_normal / away.clamp(min=1e-12)
        ratios = ratios.masked_fill(from_normal == 0, 0.0)
        largest = torch.maximum(largest, ratios.amax(dim=0))
    return largest
