"""What raised a false alarm, and should not any more, nor what is like it.

A corrected image joins the bank. But a harmless mark looks a little different each
time, and by the standards of what is normal these are large differences. How large they
are, several corrected images tell: a patch h of one of them that was far from normal
ones has its like in another one, some distance away. A patch x that is no farther from
h than is usual among these counts as typical; one that is farther soon counts as it
would without. And only as far as all scales agree: a pixel counts, at every scale, as
much as at the one that finds it least harmless. One corrected image alone tells nothing
of that, and just joins the bank.

Where a patch lies counts among them as much as it does for what is harmless: not at all
if it comes anywhere.
"""

from dataclasses import dataclass

import numpy as np
import torch

from skpatchsvdd._bank import as_tensor
from skpatchsvdd._inspection.weighted import SearchedRows, WeightedSearch

# The power of |x - h| / r: what is farther from h than its like soon counts as before.
_POWER = 8
# How many times what is typical a patch must have been away from normal ones.
_FAR = 2.0
# A corrected image is of one sort with another if its patches of any size are, in the
# median, so much nearer to those of others than to normal ones.
_ALIKE = 0.75
# The radius r, as a multiple of how far such patches are apart in the median: most of
# what is like them is nearer. Chosen, as the power, for marks anywhere on synthetic
# textures: with more, scratches are missed.
_SLACK = 1.5
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
        """Return how far patches are from harmless ones, in units of what is usual.

        Parameters
        ----------
        scale : int
            The index of a scale.
        features : tensor of shape (n_images, n_patches, n_features)
            float32, on any device.

        Returns
        -------
        distances : tensor of shape (n_images, n_patches)
            Infinite where nothing is known.
        """
        search, weights, columns = self._search_on(scale, features.device)
        if search is None:
            return features.new_full(features.shape[:2], torch.inf)
        return search.search_images(features * columns, [weights] * len(features))

    def _make_search(self, scale, device):
        rows, columns = self._rescale(scale)
        weights = self._weigh(scale, rows)
        counts = weights < np.inf
        if not counts.any():
            return None, None, None
        search = WeightedSearch(rows.numpy()[counts], device)
        return search, as_tensor(weights[counts]).to(device), columns.to(device)

    def _weigh(self, scale, rows):
        """Return the units in which distances from each row are measured, inverted."""
        images = self.images[scale]
        counts = np.isin(images, self._find_alike())
        if not counts.any():
            return np.full(len(rows), np.inf, dtype=np.float32)
        radius = _SLACK * np.median(_find_apart(rows, images)[counts])
        weights = 1 / np.minimum(radius, self.distances[scale])
        return np.where(counts, weights, np.inf).astype(np.float32)

    def _find_alike(self):
        """Return the numbers of images that are of one sort with others."""
        alike = set()
        for scale, images in enumerate(self.images):
            ratios = _find_apart(self._rescale(scale)[0], images)
            ratios /= self.distances[scale]
            medians = {x: np.median(ratios[images == x]) for x in np.unique(images)}
            alike |= {x for x, ratio in medians.items() if ratio < _ALIKE}
        return sorted(alike)

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
    """Lower the distances of patches that are near to harmless ones.

    A larger distance stays larger, so that a bound stays a bound.

    Parameters
    ----------
    distances : tensor
        Those to the nearest normal patches.
    near : tensor of the same shape
        See `Harmless.measure`.
    typical : float
        The distance that normal patches have.
    """
    return torch.minimum(distances, typical * near.clamp(min=1).pow(_POWER))


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


def learn_harmless(former, images, inspector):
    """Let the patches of corrected images join those that are harmless.

    Parameters
    ----------
    former : Harmless or None
        What is known already.
    images : ImageStack
        Corrected images.
    inspector : Inspector
        With a bank that does not hold them, or holds them as known images.

    Returns
    -------
    harmless : Harmless
    """
    parts = [[] for _ in inspector.indexes]
    typical = [None] * len(parts)
    n_former = 0
    if former is not None:
        parts, typical, n_former = _list_parts(former), former.typical, former.n_images
    for number, (features, owner) in enumerate(inspector.encode_each(images), n_former):
        for i, x in enumerate(features):
            cells = torch.from_numpy(inspector.encoder.cells[i]).to(x.device)
            own = x.flatten(0, 1)[cells]
            (distances,) = inspector.indexes[i].query_exactly(own[None], [owner])
            distances = distances.cpu().numpy()
            if typical[i] is None:
                typical[i] = _find_typical(inspector, i, distances)
            is_far = distances > _FAR * typical[i]
            numbers = np.full(is_far.sum(), number)
            parts[i].append((own.cpu().numpy()[is_far], numbers, distances[is_far]))
    return _join(parts, typical, [unit > 0 for unit in inspector.units])


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
