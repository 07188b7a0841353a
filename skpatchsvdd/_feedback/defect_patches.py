"""From defective images to the bank of known defects: which patches, and how many."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import ndimage

from skpatchsvdd._bank import Coreset, as_tensor
from skpatchsvdd._feedback.known_defects import KnownDefects, measure_limits
from skpatchsvdd._images import ImageStack
from skpatchsvdd._scoring import find_covering, find_decisive

# Rows of known defects of each scale, at most: comparing all patches of an image with
# them takes no longer than the search in the bank of normal ones.
_MAX_ROWS = 1024
# How much of a patch a defect must cover, as a fraction of what it covers of the patch
# that it covers most of: thin scratches cover little of any.
_COVERED = 0.5
_TOUCHING = np.ones((3, 3))  # pixels that touch at a corner belong together


@dataclass(frozen=True)
class DefectiveImages:
    """Images that show defects, and what is known of these."""

    stack: ImageStack
    known: list  # their digests, bytes
    kinds: list  # what each of them shows, str
    # Where, bool, at the size of inspection; None is where the score comes from.
    masks: list

    def __len__(self):
        return len(self.stack)

    def take(self, indices):
        """Return some of them."""
        lists = ([x[i] for i in indices] for x in (self.known, self.kinds, self.masks))
        return DefectiveImages(self.stack.take(indices), *lists)

    def without(self, known):
        """Return those that are not known yet, each once."""
        first = {digest: i for i, digest in reversed(list(enumerate(self.known)))}
        return self.take(sorted(i for x, i in first.items() if x not in known))


def learn_defects(former, defective, fitted, context):
    """Let patches of `DefectiveImages` join `KnownDefects`, or begin with None.

    The bank of normal patches encodes the images, and says where defects are if nobody
    does.
    """
    bank = context.load(fitted)
    parts, lists = [[] for _ in fitted.indexes], ([], [], [])
    if former is not None:
        parts = [[(bank.rows, bank.places)] for bank in former.banks]
        lists = former.known, former.kinds, former.files
    with context.report.progress("learning defects", len(defective)) as progress:
        for i in range(len(defective)):
            found = _find_rows(defective.take([i]), bank, context.report)
            for part, (rows, cells) in zip(parts, found, strict=True):
                part.append((rows, _make_places(len(lists[0]) + i, cells)))
            progress(i + 1)
    kept = [_keep_cover(part, context) for part in parts]
    news = defective.known, defective.kinds, defective.stack.files
    lists = [[*a, *b] for a, b in zip(lists, news, strict=True)]
    return _measure(kept, lists, fitted, context)


def measure_again(defects, fitted, context):
    """Return known defects with the limits of another `FittedBank`."""
    kept = [(bank.rows, bank.places) for bank in defects.banks]
    lists = defects.known, defects.kinds, defects.files
    return _measure(kept, lists, fitted, context)


def drop_defects(defects, known):
    """Return known defects without those of some images; None if none are left."""
    if defects is None or not set(known) & set(defects.known):
        return defects
    stays = np.array([x not in known for x in defects.known])
    numbers = np.cumsum(stays) - 1
    banks = []
    for bank in defects.banks:
        keep = stays[bank.places[:, 0]]
        images, cells = bank.places[keep].T
        banks.append(
            bank._replace(
                rows=bank.rows[keep],
                places=_make_places(numbers[images], cells),
                limits=bank.limits[:, keep],
                holders=bank.holders[keep],
            )
        )
    lists = defects.known, defects.kinds, defects.files
    lists = (list(itertools.compress(values, stays)) for values in lists)
    return KnownDefects(banks, *lists) if stays.any() else None


def rename_defects(defects, kinds):
    """Return known defects of which some, by digest, are of another kind."""
    if not kinds:
        return defects
    pairs = zip(defects.known, defects.kinds, strict=True)
    return replace(defects, kinds=[kinds.get(x, kind) for x, kind in pairs])


def _measure(kept, lists, fitted, context):
    context.report.log("measuring how near normal patches come to known defects")
    banks = [
        measure_limits(*rows_and_places, index, fitted.owners, context.device)
        for rows_and_places, index in zip(kept, fitted.indexes, strict=True)
    ]
    return KnownDefects(banks, *lists)


def _find_rows(image, bank, report):
    """Return features and cells of the patches of one defective image, by scale."""
    dense = bank.encoder
    (mask,), (kind,), (file,) = image.masks, image.kinds, image.stack.files
    if mask is None:
        mask = find_decisive(image.stack, bank)
        where = "" if file is None else f" in {file}"
        report.log(f"{kind}{where}: no mask, so where the map is highest")
    if dense.roi is not None:
        mask = mask & dense.roi
    if not mask.any():
        raise ValueError(
            f"the mask of {file or 'an image'} that is called {kind!r} holds no pixel "
            "of roi. Pass a mask of what roi looks at."
        )
    (_, batch), *_ = image.stack.batches(1)
    features = dense.add_positions(dense.encode(batch), bank.units)
    found = []
    for i, x in enumerate(features):
        size, stride = dense.patch_sizes[i], dense.strides[i]
        cells = np.flatnonzero(choose_patches(mask, dense.grids[i], size, stride))
        rows = x[0].flatten(0, 1)[torch.from_numpy(cells).to(x.device)]
        found.append((rows.cpu().numpy(), cells))
    return found


def _make_places(numbers, cells):
    """Return the numbers of images, or of one, beside those of patches, (n, 2)."""
    numbers = np.broadcast_to(numbers, len(cells))
    return np.column_stack([numbers, cells]).astype(np.int32)


def _keep_cover(part, context):
    """Return the rows of some parts, and their places; a covering part of too many."""
    rows, places = (np.concatenate(x) for x in zip(*part, strict=True))
    if len(rows) <= _MAX_ROWS:
        return rows, places
    coreset = Coreset(_MAX_ROWS, *rows.shape, context.rng, context.device)
    coreset.add(as_tensor(rows), places)
    return coreset.result()


def choose_patches(mask, grid, patch_size, stride):
    """Choose the patches, of a grid of (rows, cols), that lie mostly in a mask.

    Of each connected region those of which it covers half as much, or more, as of the
    one that it covers most of; if it covers none, those which its values in a map are
    from, the nearest ones.
    """
    labels, n_regions = ndimage.label(mask, structure=_TOUCHING)
    chosen = np.zeros(grid, dtype=bool)
    for region in range(1, n_regions + 1):
        pixels = labels == region
        covered = _cover(pixels, grid, patch_size, stride)
        if covered.max() > 0:
            chosen |= covered >= _COVERED * covered.max()
        else:  # in a border that no patch reaches
            nearest = find_covering(torch.from_numpy(pixels), patch_size, stride)
            chosen |= nearest.numpy()
    return chosen


def _cover(mask, grid, patch_size, stride):
    """Return the fraction of each patch that a mask covers, (rows, cols)."""
    sums = np.pad(mask, ((1, 0), (1, 0))).cumsum(0, dtype=np.int64).cumsum(1)
    rows, cols = (stride * np.arange(n) for n in grid)
    strips = sums[rows + patch_size] - sums[rows]
    return (strips[:, cols + patch_size] - strips[:, cols]) / patch_size**2
