"""Learning what is harmless from good images that raised an alarm."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from skpatchsvdd._feedback.harmless import (
    FAR,
    LEAST,
    Around,
    Harmless,
    average_far,
    couple,
    lower_distances,
)
from skpatchsvdd._images import list_digests

# The fraction of new normal images whose scores are below the level of an alarm.
_ALARMS = 0.05
# The largest ratio that is tried, and how often the range of ratios is halved.
_LARGEST, _N_HALVINGS = 12.0, 7
# Rows of each scale, at most.
_MAX_ROWS = 2**14
# What a `Harmless` holds for each row.
_BY_SCALE = ("rows", "images", "cells", "looks")


@dataclass
class _Seen:
    """What a corrected image was like before it was: lists by scale."""

    distances: list  # (1, rows, cols)
    usual: list | None  # (1, rows, cols)
    cells: list  # the numbers of patches around which are far ones, (n,)
    around: list  # what is around each, `Around`
    is_chosen: list  # which are far themselves, and touch regions above the level


def learn_harmless(former, images, inspector, scores, report):
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
        With a bank that does not hold them.
    scores : ndarray of shape (n_images,)
        Scores of normal images, which tell what an alarm is.
    report : Report
        Says how far it has come.

    Returns
    -------
    harmless : Harmless
    """
    typical = list_typical(inspector) if former is None else former.typical
    level = -np.sort(scores)[max(int(_ALARMS * (len(scores) + 1)) - 1, 0)]
    masks = (one_map > level for maps in inspector.maps(images) for one_map in maps)
    encoded = zip(inspector.encode_each(images), masks, strict=True)
    seen = []
    with report.side_progress("learning false alarms", len(images)) as progress:
        for pair in encoded:
            seen.append(_look(inspector, typical, *pair))
            progress(len(seen))
    if former is None:
        former = _make_empty(inspector, typical, seen[0])
    _limit(seen, former)
    harmless = _append(former, seen, list_digests(images))
    ratios = harmless.ratios.copy()
    for number, own in enumerate(seen, len(former.known)):
        ratios[number] = _find_ratio(harmless, own, number, inspector, level)
    return replace(harmless, ratios=ratios)


def _make_empty(inspector, typical, seen):
    """Return what is known before an image was seen, the first one."""
    numbers = [np.zeros(0, dtype=np.int32) for _ in seen.around]
    return Harmless(
        rows=[x.features[:0].cpu().numpy() for x in seen.around],
        images=numbers,
        cells=numbers,
        looks=[x.looks[:0].cpu().numpy() for x in seen.around],
        known=[],
        ratios=np.zeros(0),
        typical=typical,
        grids=[tuple(grid) for grid in inspector.encoder.grids],
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


def _look(inspector, typical, encoded, mask):
    """Return what there is to know of a corrected image."""
    distances, usual = inspector.measure(encoded)
    seen = _Seen(distances, usual, [], [], [])
    for i, x in enumerate(encoded.features):
        width = x.shape[-1] - 2 * (inspector.units[i] > 0)
        features, colors = x[..., :width], encoded.colors[i]
        around = average_far(features, colors, distances[i], typical[i]).flatten()
        is_far = (distances[i] > FAR * typical[i]).cpu().numpy().ravel()
        is_around = around.far > 0
        cells = is_around.nonzero()[:, 0].cpu().numpy().astype(np.int32)
        seen.cells.append(cells)
        seen.around.append(Around(*(y[is_around] for y in around)))
        seen.is_chosen.append((is_far & _find_touching(mask, inspector, i))[cells])
    return seen


def _find_touching(mask, inspector, scale):
    """Return which patches of a scale hold a pixel of a mask."""
    pixels = torch.from_numpy(mask)
    return inspector.find_covering(scale, pixels).flatten().numpy()


def _limit(seen, former):
    """Choose no more patches than there is room for."""
    for i, rows in enumerate(former.rows):
        room = _MAX_ROWS - len(rows)
        for own in seen:
            chosen = np.flatnonzero(own.is_chosen[i])
            own.is_chosen[i][chosen[max(room, 0) :]] = False
            room -= len(chosen)


def _append(former, seen, digests):
    """Return what was known and what was seen; ratios are those to be found."""
    n_former = len(former.known)
    parts = {name: [] for name in _BY_SCALE}
    for i in range(len(former.rows)):
        lists = {name: [getattr(former, name)[i]] for name in _BY_SCALE}
        for number, own in enumerate(seen, n_former):
            chosen, around = own.is_chosen[i], own.around[i]
            cells = own.cells[i][chosen]
            lists["rows"].append(around.features.cpu().numpy()[chosen])
            lists["looks"].append(around.looks.cpu().numpy()[chosen])
            lists["cells"].append(cells)
            lists["images"].append(np.full(len(cells), number, dtype=np.int32))
        for name, values in lists.items():
            parts[name].append(np.concatenate(values))
    ratios = np.append(former.ratios, np.ones(len(seen)))
    return replace(former, **parts, known=[*former.known, *digests], ratios=ratios)


def _find_ratio(harmless, seen, number, inspector, level):
    """Return the largest ratio at which others silence an image; NaN if none does."""
    compared = [_compare(harmless, seen, number, i) for i in range(len(harmless.rows))]

    is_around = {}
    for i, (x, cells) in enumerate(zip(seen.distances, seen.cells, strict=True)):
        is_around[i] = torch.zeros_like(x, dtype=torch.bool)
        is_around[i].view(-1)[torch.from_numpy(cells).long().to(x.device)] = True

    def is_silent(ratio):
        quotients = {i: find(ratio) for i, find in enumerate(compared)}
        quotients = couple(quotients, is_around).values()
        triples = zip(seen.distances, quotients, harmless.typical, strict=True)
        lowered = [lower_distances(*own) for own in triples]
        return inspector.score_distances(lowered, seen.usual) <= level

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
    """Return what gives, by a ratio, how far patches are from those of the others."""
    far_apart = torch.full_like(seen.distances[scale], torch.inf)
    features, looks, far = seen.around[scale]
    cells = torch.from_numpy(seen.cells[scale].astype(np.int64)).to(far.device)
    if (harmless.images[scale] == number).all() or len(cells) == 0:
        return lambda ratio: far_apart
    away = harmless.find_away(scale, left_out=number).to(far.device).flatten()[cells]
    ones = torch.ones(len(harmless.images[scale]))
    rows = harmless.make_rows(scale, ones, far.device, left_out=number)

    def find(ratio):
        quotients = far_apart.clone()
        quotients.view(-1)[cells] = rows.compare(features, looks, far / ratio) * away
        return quotients

    return find


def drop_harmless(harmless, digests):
    """Return what is harmless without some images; None if nothing is left."""
    if harmless is None or not set(digests) & set(harmless.known):
        return harmless
    stays = np.array([x not in digests for x in harmless.known])
    numbers = (np.cumsum(stays) - 1).astype(np.int32)
    kept = [stays[x] for x in harmless.images]
    parts = {
        name: [x[k] for x, k in zip(getattr(harmless, name), kept, strict=True)]
        for name in _BY_SCALE
    }
    parts["images"] = [numbers[x] for x in parts["images"]]
    known = [x for x, stay in zip(harmless.known, stays, strict=True) if stay]
    ratios = harmless.ratios[stays]
    return replace(harmless, **parts, known=known, ratios=ratios) if known else None


def join_harmless(known):
    """Return what several know as one; None where nobody knows anything."""
    known = [x for x in known if x is not None]
    if not known:
        return None
    joined = known[0]
    for other in known[1:]:
        is_new = np.array([x not in joined.known for x in other.known], dtype=bool)
        numbers = (len(joined.known) + np.cumsum(is_new) - 1).astype(np.int32)
        other = replace(other, images=[numbers[x] for x in other.images])
        kept = [x >= len(joined.known) for x in other.images]
        parts = {
            name: [
                np.concatenate([a, b[k]])
                for a, b, k in zip(
                    getattr(joined, name), getattr(other, name), kept, strict=True
                )
            ]
            for name in _BY_SCALE
        }
        digests = [x for x, new in zip(other.known, is_new, strict=True) if new]
        joined = replace(
            joined,
            **parts,
            known=[*joined.known, *digests],
            ratios=np.append(joined.ratios, other.ratios[is_new]),
        )
    return joined
