"""What raised a false alarm, and should not any more, nor what is like it.

The patches of a corrected image that raised the alarm, those in the regions above the
level of an alarm that are far from normal ones, do not join the bank: they are a class
of their own. A harmless mark looks a little different each time, and by the standards
of what is normal these are large differences. So it is the ratio d(x) / |x - h| that
counts, by which a patch x is nearer to a harmless one, h, than to any normal one. How
large it is for what is of one sort, several corrected images tell, each measured
against the others: a patch with a ratio that most of theirs reach counts as typical,
and one with less soon as it would without. Other defects are about as far from a
harmless mark as from what is normal, and keep their distances.

Where a patch lies counts as much as it does for what is harmless: not at all if that
comes anywhere.
"""

from dataclasses import dataclass

import numpy as np
import torch

from skpatchsvdd._bank import as_tensor
from skpatchsvdd._inspection.weighted import SearchedRows, WeightedSearch

# How many times what is typical a patch must have been away from normal ones.
_FAR = 2.0
# The fraction of normal images whose scores are below the level of an alarm.
_ALARMS = 0.05
# The ratio that counts is one that all but this fraction of harmless patches reach, but
# at least this; and where images tell nothing of each other, as a single one does not,
# and those of different sorts.
_MISSED, _LEAST, _UNKNOWN = 0.1, 1.35, 3.0
# The power by which what has a smaller ratio counts more. Chosen, as the ratios, on
# five categories with the marks of benchmarks/bench_feedback.py.
_POWER = 6
# Rows of each scale, at most, those that were farthest from normal.
_MAX_ROWS = 2048


@dataclass(eq=False)
class Harmless(SearchedRows):
    """Patches of corrected images that were far from normal ones, by scale.

    Parameters
    ----------
    rows : list of ndarray of shape (n_rows, n_features)
        Features, float32.
    images : list of ndarray of int of shape (n_rows,)
        The number of the corrected image that each row is from.
    distances : list of ndarray of shape (n_rows,)
        How far each was from normal patches, float32.
    typical : list of float
        How far normal patches are from each other.
    have_positions : list of bool
        Whether the last two columns of the rows are positions.
    """

    rows: list
    images: list
    distances: list
    typical: list
    have_positions: list

    @property
    def n_images(self):
        """The number of corrected images, or more."""
        return 1 + max((int(x.max()) for x in self.images if len(x)), default=-1)

    def measure(self, scale, features):
        """Return how far patches are from harmless ones, times the ratio that counts.

        A patch counts as typical if it is farther than that from all normal patches.

        Parameters
        ----------
        scale : int
            The index of a scale.
        features : tensor of shape (n_images, n_patches, n_features)
            float32, on any device.

        Returns
        -------
        near : tensor of shape (n_images, n_patches)
            Infinite where nothing is known.
        """
        search, weights, columns = self._search_on(scale, features.device)
        if search is None:
            return features.new_full(features.shape[:2], torch.inf)
        return search.search_images(features * columns, [weights] * len(features))

    def _make_search(self, scale, device):
        rows, columns = self._rescale(scale)
        if len(rows) == 0:
            return None, None, None
        weights = torch.full((len(rows),), self._find_ratio(scale, rows))
        search = WeightedSearch(rows.numpy(), device)
        return search, weights.to(device), columns.to(device)

    def _find_ratio(self, scale, rows):
        """Return the ratio from which on a patch counts as typical."""
        images = self.images[scale]
        ratios = self.distances[scale] / np.maximum(_find_apart(rows, images), 1e-12)
        if np.median(ratios) < 1:  # most are nearer to what is normal
            return _UNKNOWN
        return max(float(np.quantile(ratios, _MISSED)), _LEAST)

    def _rescale(self, scale):
        """Return rows whose positions count as they should, and columns' factors."""
        rows = as_tensor(self.rows[scale])
        columns = torch.ones(rows.shape[1])
        if self.have_positions[scale]:
            columns[-2:] = _weigh_positions(rows, self.images[scale])
        return rows * columns, columns


def _find_apart(rows, images):
    """Return how far each row is from the nearest one of another image."""
    apart = np.full(len(rows), np.inf, dtype=np.float32)
    for image in np.unique(images):
        own = torch.from_numpy(images == image)
        if not own.all():
            apart[own] = torch.cdist(rows[own], rows[~own]).amin(dim=1).numpy()
    return apart


def lower_distances(distances, near, typical):
    """Lower the distances of patches that are nearer to harmless ones.

    What is lowered is so by more if its distance is larger: of a bound nothing follows,
    but that what it does not lower is not lowered at all.

    Parameters
    ----------
    distances : tensor
        Those to the nearest normal patches.
    near : tensor of the same shape
        See `Harmless.measure`.
    typical : float
        The distance that normal patches have.
    """
    quotient = near / distances.clamp(min=1e-12)
    return torch.minimum(distances, typical * quotient.pow(_POWER))


def _weigh_positions(rows, images):
    """Return how much positions count among what is harmless, from 0 to 1.

    Not at all if rows of different images that look most alike are hardly nearer to
    each other than any two: then it comes anywhere.

    Parameters
    ----------
    rows : tensor of shape (n_rows, n_features)
        With positions in the last two columns.
    images : ndarray of int of shape (n_rows,)
        The image that each is from.
    """
    alike, any_two = [], []
    if len(np.unique(images)) < 2:
        return 1.0
    for image in np.unique(images):
        own = torch.from_numpy(images == image)
        nearest = torch.cdist(rows[own, :-2], rows[~own, :-2]).argmin(dim=1)
        away = torch.cdist(rows[own, -2:], rows[~own, -2:])
        alike.append(away.gather(1, nearest[:, None])[:, 0])
        any_two.append(away.mean(dim=1))
    ratio = torch.cat(alike).mean() / torch.cat(any_two).mean().clamp(min=1e-12)
    # Half: around a mark that comes anywhere things may still tell where they are.
    return max(1 - 2 * float(ratio), 0.0)


def learn_harmless(former, images, inspector, scores):
    """Let the patches of corrected images that raised an alarm join the harmless ones.

    Parameters
    ----------
    former : Harmless or None
        What is known already.
    images : ImageStack
        Corrected images.
    inspector : Inspector
        With a bank that does not hold them, or holds them as known images.
    scores : ndarray of shape (n_images,)
        Scores of normal images, which tell what an alarm is.

    Returns
    -------
    harmless : Harmless
    cells : list of list of ndarray of int
        By image and scale, the numbers of these patches.
    """
    parts = [[] for _ in inspector.indexes]
    typical = [None] * len(parts)
    n_former, chosen = 0, []
    if former is not None:
        parts, typical, n_former = _list_parts(former), former.typical, former.n_images
    level = -float(np.quantile(scores, _ALARMS))
    masks = [one_map > level for maps in inspector.maps(images) for one_map in maps]
    encoded = zip(inspector.encode_each(images), masks, strict=True)
    for number, ((features, owner), mask) in enumerate(encoded, n_former):
        chosen.append([])
        for i, x in enumerate(features):
            cells = inspector.encoder.cells[i]
            own = x.flatten(0, 1)[torch.from_numpy(cells).to(x.device)]
            (distances,) = inspector.indexes[i].query_exactly(own[None], [owner])
            distances = distances.cpu().numpy()
            if typical[i] is None:
                typical[i] = _find_typical(inspector, i, distances)
            is_far = distances > _FAR * typical[i]
            is_far &= _find_inside(mask, inspector.encoder, i)[cells]
            numbers = np.full(is_far.sum(), number)
            parts[i].append((own.cpu().numpy()[is_far], numbers, distances[is_far]))
            chosen[-1].append(cells[is_far])
    units = [unit > 0 for unit in inspector.units]
    return _join(parts, typical, units), chosen


def _find_inside(mask, dense, scale):
    """Return which patches of a scale have their middle in a mask."""
    size, stride = dense.patch_sizes[scale], dense.strides[scale]
    rows, cols = (
        np.minimum(stride * np.arange(n) + size // 2, length - 1)
        for n, length in zip(dense.grids[scale], mask.shape, strict=True)
    )
    return mask[np.ix_(rows, cols)].ravel()


def join_harmless(known):
    """Return what several know as one; None where nobody knows anything."""
    known = [x for x in known if x is not None]
    if not known:
        return None
    parts, n_images = [[] for _ in known[0].rows], 0
    for harmless in known:
        own = zip(
            parts, harmless.rows, harmless.images, harmless.distances, strict=True
        )
        for part, rows, images, distances in own:
            there = {x.tobytes() for some, *_ in part for x in some}
            is_new = np.array([x.tobytes() not in there for x in rows], dtype=bool)
            part.append((rows[is_new], images[is_new] + n_images, distances[is_new]))
        n_images += harmless.n_images
    return _join(parts, known[0].typical, known[0].have_positions)


def _list_parts(known):
    triples = zip(known.rows, known.images, known.distances, strict=True)
    return [[triple] for triple in triples]


def _find_typical(inspector, scale, distances):
    """Return how far normal patches are from others; if nobody knows, from an image."""
    if inspector.variations is not None:
        distances = inspector.variations[scale].distances
    return max(float(np.median(distances)), 1e-6)


def _join(parts, typical, have_positions):
    kept = []
    for part in parts:
        rows, images, distances = (np.concatenate(x) for x in zip(*part, strict=True))
        farthest = np.argsort(-distances, kind="stable")[:_MAX_ROWS]
        chosen = np.sort(farthest)
        kept.append((rows[chosen], images[chosen], distances[chosen]))
    lists = (list(x) for x in zip(*kept, strict=True))
    return Harmless(*lists, list(typical), have_positions)
