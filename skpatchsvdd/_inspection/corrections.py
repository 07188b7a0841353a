"""Learning what is harmless from good images that raised an alarm."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from skpatchsvdd._images import list_digests
from skpatchsvdd._inspection.harmless import (
    FAR,
    LEAST,
    Harmless,
    average_far,
    lower_distances,
)

# The fraction of new normal images whose scores are below the level of an alarm.
_ALARMS = 0.05
# The largest ratio that is tried, and how often the range of ratios is halved.
_LARGEST, _N_HALVINGS = 12.0, 7
# Rows of each scale, at most.
_MAX_ROWS = 2**14


@dataclass
class _Seen:
    """What a corrected image was like before it was: lists by scale."""

    distances: list  # (1, rows, cols)
    usual: list | None  # (1, rows, cols)
    cells: list  # the numbers of patches around which are far ones, (n,)
    means: list  # of the far ones around each, (n, n_features)
    far: list  # of their distances, (n,)
    is_chosen: list  # which are far themselves, in regions above the level, (n,)


def learn_harmless(former, images, inspector, scores, progress):
    """Let the patches of corrected images that raised an alarm join the harmless ones.

    How alike things of one sort are is found out by leaving out: for each of these
    images, the largest ratio is sought at which it would raise no alarm if only the
    others had been corrected. What this does to thresholds is nothing: see
    `Calibration`.

    Parameters
    ----------
    former : Harmless or None
        What is known already.
    images : ImageStack
        Corrected images that it does not know.
    inspector : Inspector
        With a bank that does not hold them, or holds them as known images.
    scores : ndarray of shape (n_images,)
        Scores of normal images, which tell what an alarm is.
    progress : callable
        ``progress(n)`` is told how many images have been looked at.

    Returns
    -------
    harmless : Harmless
    cells : list of list of ndarray of int
        By image and scale, the numbers of these patches.
    """
    if former is None:
        former = _make_empty(inspector)
    level = -np.sort(scores)[max(int(_ALARMS * (len(scores) + 1)) - 1, 0)]
    masks = (one_map > level for maps in inspector.maps(images) for one_map in maps)
    encoded = zip(inspector.encode_each(images), masks, strict=True)
    seen = []
    for (features, owner), mask in encoded:
        seen.append(_look(inspector, former.typical, features, owner, mask))
        progress(len(seen))
    _limit(seen, former)
    harmless = _append(former, seen, list_digests(images))
    n_former = len(former.known)
    ratios = harmless.ratios.copy()
    for number, own in enumerate(seen, n_former):
        ratios[number] = _find_ratio(harmless, own, number, inspector, level)
    cells = [
        [x[chosen] for x, chosen in zip(own.cells, own.is_chosen, strict=True)]
        for own in seen
    ]
    return replace(harmless, ratios=ratios), cells


def _make_empty(inspector):
    widths = [index.view_bank().rows.shape[1] for index in inspector.indexes]
    units = zip(widths, inspector.units, strict=True)
    numbers = [np.zeros(0, dtype=np.int32)] * len(widths)
    return Harmless(
        [np.zeros((0, n - 2 * (unit > 0)), dtype=np.float32) for n, unit in units],
        numbers,
        list(numbers),
        [],
        np.zeros(0),
        list_typical(inspector),
        [tuple(grid) for grid in inspector.encoder.grids],
    )


def list_typical(inspector):
    """Return how far normal patches are from those of other owners, by scale."""
    return [_find_typical(inspector, i) for i in range(len(inspector.indexes))]


def _find_typical(inspector, scale):
    if inspector.variations is not None:
        distances = inspector.variations[scale].distances
    else:
        index = inspector.indexes[scale]
        bank = index.view_bank()
        owner = bank.owners.min()
        rows = torch.from_numpy(bank.rows[bank.owners == owner])
        rows = rows.to(inspector.encoder.device)
        distances = index.query_exactly(rows[None], [int(owner)])
        distances = distances.cpu().numpy()
    return max(float(np.median(distances)), 1e-6)


def _look(inspector, typical, features, owner, mask):
    """Return what there is to know of a corrected image."""
    distances, usual = inspector.measure_features([x[None] for x in features], owner)
    seen = _Seen(distances, usual, [], [], [], [])
    for i, x in enumerate(features):
        width = x.shape[-1] - 2 * (inspector.units[i] > 0)
        means, far = average_far(x[None, ..., :width], distances[i], typical[i])
        is_far = (distances[i] > FAR * typical[i]).cpu().numpy().ravel()
        is_around = far.flatten() > 0
        cells = is_around.nonzero()[:, 0].cpu().numpy().astype(np.int32)
        seen.cells.append(cells)
        seen.means.append(means[0].flatten(0, 1)[is_around])
        seen.far.append(far.flatten()[is_around])
        in_mask = _find_in_mask(mask, inspector.encoder, i)
        seen.is_chosen.append((in_mask & is_far)[cells])
    return seen


def _find_in_mask(mask, dense, scale):
    """Return which patches of a scale have their middle in a mask."""
    size, stride = dense.patch_sizes[scale], dense.strides[scale]
    rows, cols = (
        np.minimum(stride * np.arange(n) + size // 2, length - 1)
        for n, length in zip(dense.grids[scale], mask.shape, strict=True)
    )
    return mask[np.ix_(rows, cols)].ravel()


def _limit(seen, former):
    """Choose no more patches than there is room for: the others join the bank."""
    for i, rows in enumerate(former.rows):
        room = _MAX_ROWS - len(rows)
        for own in seen:
            chosen = np.flatnonzero(own.is_chosen[i])
            own.is_chosen[i][chosen[max(room, 0) :]] = False
            room -= len(chosen)


def _append(former, seen, digests):
    """Return what was known and what was seen; ratios are those to be found."""
    numbers = range(len(former.known), len(former.known) + len(seen))
    rows, images, cells = [], [], []
    for i in range(len(former.rows)):
        chosen = [own.is_chosen[i] for own in seen]
        means = [own.means[i].cpu().numpy() for own in seen]
        own_cells = [own.cells[i] for own in seen]
        means, own_cells = (
            [x[k] for x, k in zip(y, chosen, strict=True)] for y in (means, own_cells)
        )
        own_images = [
            np.full(len(x), n, dtype=np.int32)
            for x, n in zip(own_cells, numbers, strict=True)
        ]
        rows.append(np.concatenate([former.rows[i], *means]))
        cells.append(np.concatenate([former.cells[i], *own_cells]))
        images.append(np.concatenate([former.images[i], *own_images]))
    known = [*former.known, *digests]
    ratios = np.append(former.ratios, np.ones(len(seen)))
    return Harmless(rows, images, cells, known, ratios, former.typical, former.grids)


def _find_ratio(harmless, seen, number, inspector, level):
    """Return the largest ratio at which others silence an image; NaN if none does."""
    quotients = [_compare(harmless, seen, number, i) for i in range(len(harmless.rows))]

    def is_silent(ratio):
        triples = zip(seen.distances, quotients, harmless.typical, strict=True)
        lowered = [lower_distances(x, ratio * q, unit) for x, q, unit in triples]
        return inspector.score_distances(lowered, seen.usual) >= -level

    if not is_silent(LEAST):
        return np.nan
    low, high = LEAST, _LARGEST
    if is_silent(high):
        return high
    for _ in range(_N_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if is_silent(middle) else (low, middle)
    return low


def _compare(harmless, seen, number, scale):
    """Return what `Harmless.measure` would of an image, by the others, at ratio 1."""
    quotients = torch.full_like(seen.distances[scale], torch.inf)
    others = harmless.images[scale] != number
    cells = torch.from_numpy(seen.cells[scale].astype(np.int64))
    if not others.any() or len(cells) == 0:
        return quotients
    device = quotients.device
    rows = torch.from_numpy(harmless.rows[scale][others]).to(device)
    near = torch.cdist(seen.means[scale], rows).amin(dim=1)
    away = harmless.find_away(scale, left_out=number).flatten()[cells].to(device)
    quotients.view(-1)[cells.to(device)] = near * away / seen.far[scale]
    return quotients


def join_harmless(known):
    """Return what several know as one; None where nobody knows anything."""
    known = [x for x in known if x is not None]
    if not known:
        return None
    joined = known[0]
    for other in known[1:]:
        is_new = np.array([x not in joined.known for x in other.known], dtype=bool)
        numbers = len(joined.known) + np.cumsum(is_new) - 1
        kept = [is_new[images] for images in other.images]
        images = [
            numbers[x[k]].astype(np.int32)
            for x, k in zip(other.images, kept, strict=True)
        ]
        rows, cells = (
            [x[k] for x, k in zip(y, kept, strict=True)]
            for y in (other.rows, other.cells)
        )
        joined = Harmless(
            _join_lists(joined.rows, rows),
            _join_lists(joined.images, images),
            _join_lists(joined.cells, cells),
            [*joined.known, *np.array(other.known, dtype=object)[is_new]],
            np.append(joined.ratios, other.ratios[is_new]),
            joined.typical,
            joined.grids,
        )
    return joined


def _join_lists(first, second):
    return [np.concatenate(pair) for pair in zip(first, second, strict=True)]
