"""Which kind of known defects a region resembles."""

from collections import Counter

import numpy as np
import torch

from skpatchsvdd._bank import as_tensor
from skpatchsvdd._feedback.defect_patches import choose_patches
from skpatchsvdd._images import UNKNOWN_KIND
from skpatchsvdd._scoring import encode_each

# The least ratio of distances, so that a copy of a known defect does not outweigh all
# other scales.
_LEAST = 1e-3
# What unlike defects reach by chance: a ratio, and the power of the number of known
# images with which it falls, as the nearest of more patches is nearer. Chosen so that
# about one unlike defect in ten is below it, for 1 to 8 images of a kind, on bottle,
# hazelnut, leather, screw and transistor of MVTec AD and metal_plate of MPDD.
_CHANCE, _FALL = 0.9, -0.1


def name_masks(images, masks, normal, defects):
    """Say which kind of known defects parts of images resemble.

    The distance to a kind is the least one of a patch of the part to a patch of that
    kind, in units of the smaller of their distances to normal patches: what is near to
    a known defect because that is hardly abnormal, or far from everything, does not
    resemble it. Of all scales it is the geometric mean, in units of what unlike defects
    reach by chance.

    `masks` holds, for each image, those of its parts, at the size of inspection, and
    `normal` is the `DeviceBank`. Returns, for each image, an array of its parts, as
    `PatchSVDD.name_regions` does.
    """
    counts = Counter([] if defects is None else defects.kinds)
    kinds = sorted(counts)
    length = max(map(len, [*kinds, UNKNOWN_KIND]))
    dtype = np.dtype([("kind", f"U{length}"), ("distance", np.float64)])
    nothing = np.array((UNKNOWN_KIND, np.inf), dtype)
    names = [np.repeat(nothing, len(parts)) for parts in masks]
    chosen = [i for i, parts in enumerate(masks) if len(parts)]
    if not kinds or not chosen:
        return names
    chance = np.log([_CHANCE * counts[kind] ** _FALL for kind in kinds])
    scales = [_Scale(i, normal, defects, kinds) for i in range(len(defects.banks))]
    encoded = encode_each(images.take(chosen), normal)
    for i, image in zip(chosen, encoded, strict=True):
        (owner,) = image.owners
        for row, mask in zip(names[i], masks[i], strict=True):
            pairs = zip(scales, image.features, strict=True)
            logs = [scale.compare(mask, x, owner) for scale, (x,) in pairs]
            logs = np.mean(logs, axis=0) - chance
            best = int(logs.argmin())
            row["distance"] = np.exp(logs[best])
            if logs[best] < 0:
                row["kind"] = kinds[best]
    return names


class _Scale:
    """Known defects of one scale, by kind, and how far they are from what is normal."""

    def __init__(self, scale, normal, defects, kinds):
        dense, bank = normal.encoder, defects.banks[scale]
        of_row = np.array(defects.kinds)[bank.places[:, 0]]
        self._groups = [np.flatnonzero(of_row == kind) for kind in kinds]
        self._grid = dense.grids[scale]
        self._cut = dense.patch_sizes[scale], dense.strides[scale]
        self._index = normal.indexes[scale]
        self._rows = as_tensor(bank.rows).to(dense.device)
        self._normal = self._find_normal(self._rows, -1)

    def _find_normal(self, patches, owner):
        (distances,) = self._index.query(patches[None], [owner])
        return distances.clamp(min=1e-12)

    def compare(self, mask, features, owner):
        """Return logarithms of the distances of a part of an image to all kinds."""
        cells = np.flatnonzero(choose_patches(mask, self._grid, *self._cut))
        patches = features.flatten(0, 1)[torch.from_numpy(cells).to(features.device)]
        away = torch.cdist(
            patches, self._rows, compute_mode="donot_use_mm_for_euclid_dist"
        )
        normal = self._find_normal(patches, owner)[:, None]
        ratios = away / torch.minimum(normal, self._normal)
        ratios = ratios.amin(dim=0).cpu().numpy()
        smallest = [ratios[rows].min(initial=np.inf) for rows in self._groups]
        return np.log(np.clip(smallest, _LEAST, 1 / _LEAST))
