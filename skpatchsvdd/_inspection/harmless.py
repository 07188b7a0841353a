"""What raised a false alarm, and should not any more, nor what is like it.

A corrected image joins the bank. But a harmless mark looks a little different each
time, and by the standards of what is normal these are large differences. How large they
are, several corrected images tell: a patch h of one of them that was far from normal
ones is a distance v from the nearest such patch of another corrected image. A patch x
then counts as typical if it is about v away from h, and else as the square of
|x - h| / v times what is typical, if that is less than its distance to the nearest
normal patch. One corrected image alone tells nothing of that, and just joins the bank.
"""

from dataclasses import dataclass

import numpy as np
import torch

from skpatchsvdd._bank import as_tensor
from skpatchsvdd._inspection.weighted import SearchedRows, WeightedSearch

# The power of |x - h| / v: what is farther from h than its like counts quickly more.
_POWER = 2
# How many times what is typical a patch must have been away from normal ones.
_FAR = 2.0
# How many times v still counts as typical: the nearest of few is a matter of luck.
_SLACK = 1.5
# The largest v, as a fraction of the distance from normal: what is nearer than half
# of that is nearer to h than to anything normal.
_WIDEST = 0.5
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
    """

    rows: list
    images: list
    distances: list
    typical: list

    @property
    def n_images(self):
        """The number of corrected images, or more."""
        return 1 + max((int(x.max()) for x in self.images if len(x)), default=-1)

    def measure(self, scale, features):
        """Return what patches count as that are like harmless ones.

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
        search, weights = self._search_on(scale, features.device)
        if search is None:
            return features.new_full(features.shape[:2], torch.inf)
        found = search.search_images(features, [weights] * len(features))
        return found.pow(_POWER)

    def _make_search(self, scale, device):
        weights = self._weigh(scale)
        counts = weights < np.inf
        if not counts.any():
            return None, None
        search = WeightedSearch(self.rows[scale][counts], device)
        return search, as_tensor(weights[counts]).to(device)

    def _weigh(self, scale):
        """Return what distances from each row are multiplied by, before the power."""
        rows, images = as_tensor(self.rows[scale]), self.images[scale]
        apart = np.full(len(rows), np.inf, dtype=np.float32)
        for image in np.unique(images):
            own = torch.from_numpy(images == image)
            if not own.all():
                apart[own] = torch.cdist(rows[own], rows[~own]).amin(dim=1).numpy()
        typical = self.typical[scale]
        widest = np.maximum(_WIDEST * self.distances[scale], typical)
        weights = np.sqrt(typical) / np.clip(_SLACK * apart, typical, widest)
        return np.where(np.isfinite(apart), weights, np.inf).astype(np.float32)


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
    return _join(parts, typical)


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
    return _join(parts, known[0].typical)


def _list_parts(known):
    triples = zip(known.rows, known.images, known.distances, strict=True)
    return [[triple] for triple in triples]


def _find_typical(inspector, scale, distances):
    """Return how far normal patches are from others; if nobody knows, from an image."""
    if inspector.variations is not None:
        distances = inspector.variations[scale].distances
    return max(float(np.median(distances)), 1e-6)


def _join(parts, typical):
    kept = []
    for part in parts:
        rows, images, distances = (np.concatenate(x) for x in zip(*part, strict=True))
        farthest = np.argsort(-distances, kind="stable")[:_MAX_ROWS]
        chosen = np.sort(farthest)
        kept.append((rows[chosen], images[chosen], distances[chosen]))
    return Harmless(*(list(x) for x in zip(*kept, strict=True)), list(typical))
