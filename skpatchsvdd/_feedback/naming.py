"""Which kind of known defects a region resembles."""

import numpy as np
import torch

from skpatchsvdd._feedback.defect_patches import choose_patches
from skpatchsvdd._images import UNKNOWN_KIND

# The least ratio of distances, so that a copy of a known defect does not outweigh all
# other scales.
_LEAST = 1e-3


def name_masks(images, masks, inspector, defects):
    """Say which kind of known defects parts of images resemble.

    The distance to a kind is that of the part's nearest patch to a patch of that kind,
    in units of its distance to the nearest normal patch, the geometric mean over the
    scales. Where it is not below 1, the part is as near to what is normal.

    Parameters
    ----------
    images : ImageStack
        The images.
    masks : list of list of ndarray of bool of shape (height, width)
        For each image, its parts, at the size of inspection.
    inspector : Inspector
        Encodes the images, and has the bank of normal patches.
    defects : KnownDefects or None
        What is known.

    Returns
    -------
    names : list of structured ndarray of shape (n_parts,)
        With the fields `kind`, that of the smallest distance if that is below 1, or
        "unknown", and `distance`, the smallest one; infinite if nothing is known.
    """
    kinds = [] if defects is None else sorted(set(defects.kinds))
    length = max(map(len, [*kinds, UNKNOWN_KIND]))
    dtype = np.dtype([("kind", f"U{length}"), ("distance", np.float64)])
    nothing = np.array((UNKNOWN_KIND, np.inf), dtype)
    names = [np.repeat(nothing, len(own)) for own in masks]
    chosen = [i for i, own in enumerate(masks) if len(own)]
    if not kinds or not chosen:
        return names
    of_row = [np.array(defects.kinds)[bank.places[:, 0]] for bank in defects.banks]
    groups = [[np.flatnonzero(own == kind) for kind in kinds] for own in of_row]
    encoded = inspector.encode_each(images.take(chosen))
    for i, image in zip(chosen, encoded, strict=True):
        for row, mask in zip(names[i], masks[i], strict=True):
            logs = _compare(mask, image, inspector, defects, groups)
            best = int(logs.argmin())
            row["distance"] = np.exp(logs[best])
            if logs[best] < 0:
                row["kind"] = kinds[best]
    return names


def _compare(mask, encoded, inspector, defects, groups):
    """Return logarithms of the distances of a part of an image to all kinds."""
    dense, total = inspector.encoder, 0
    for i, (x,) in enumerate(encoded.features):
        grid, size, stride = dense.grids[i], dense.patch_sizes[i], dense.strides[i]
        cells = np.flatnonzero(choose_patches(mask, grid, size, stride))
        patches = x.flatten(0, 1)[torch.from_numpy(cells).to(x.device)]
        (normal,) = inspector.indexes[i].query_exactly(patches[None], encoded.owners)
        rows = torch.from_numpy(np.array(defects.banks[i].rows)).to(patches.device)
        away = torch.cdist(patches, rows, compute_mode="donot_use_mm_for_euclid_dist")
        ratios = (away / normal.clamp(min=1e-12)[:, None]).amin(dim=0).cpu().numpy()
        smallest = [ratios[own].min(initial=np.inf) for own in groups[i]]
        total = total + np.log(np.clip(smallest, _LEAST, 1 / _LEAST))
    return total / len(encoded.features)
