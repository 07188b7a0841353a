"""Exact search, the same promise on a CPU and on a GPU; copies that it leaves out."""

from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._bank.clusters import Clusters
from skpatchsvdd._bank.exact_cpu import ClusterSearch
from skpatchsvdd._bank.exact_gpu import make_gpu_search
from skpatchsvdd._utils import Saved, as_writable, check_mapped, make_lock

# Rows that a few patches are compared with at a time.
_ROWS_AT_A_TIME = 2**16
# Rows hashed or compared at a time: as many as stay in the cache of a core.
_HASHED = 2**12
_CLUSTERING = make_lock()


class Bank(NamedTuple):
    """Features of normal patches of one scale."""

    rows: np.ndarray  # (n_rows, n_features), float32
    owners: np.ndarray  # (n_rows,), the number of an image, or of a group of images
    places: np.ndarray | None = None  # (n_rows, 2): an image, and a patch in it


class ExactIndex(Saved):
    """Exact search in torch.

    From the first search on, the rows lie in clusters, most of which can be skipped.
    Copies of rows are not searched; see `find_needed`. Candidates are found by the
    expanded square and decided by the difference: a distance is that of a row, and at
    most (1 + 1e-5) times that of the nearest one. The seed is that of the clusters,
    which change how fast a search is, not what it finds.
    """

    _saved = ("rows", "owners", "places", "centers", "starts", "_seed", "_has_others")

    def __init__(self, bank, seed=0):
        self.rows, self.owners, self.places = bank
        self._has_others = bool((bank.owners != bank.owners[0]).any())
        self.centers = self.starts = None  # of clusters, as long as there is no need
        self._seed = seed
        vars(self).update(self._unsaved())

    def __len__(self):
        return len(self.rows)

    def bank(self):
        """Return a copy of the bank, owner by owner."""
        rows, owners, places = self.view_bank()
        order = np.argsort(owners, kind="stable")
        places = None if places is None else places[order]
        return Bank(rows[order], owners[order], places)

    def view_bank(self):
        """Return the bank as it lies, in any order. Nothing may write to it."""
        now = vars(self).copy()  # at once: another thread may be sorting the rows
        return Bank(now["rows"], now["owners"], now["places"])

    def check_file(self):
        """Raise if the file that the rows are mapped from has been cut off."""
        check_mapped(self.rows, "the bank")

    def query(self, features, left_out=None, proposed=None):
        """Return distances to the nearest rows, (n_images, n_patches).

        Features are float32, (n_images, n_patches, n_features), on any device. For each
        image `left_out` has the owner whose rows are left out, or -1. They are not if
        there are no others. On a CPU a search can begin with `proposed` distances
        to rows, (n_images, n_patches).
        """
        if left_out is None or not self._has_others:
            left_out = [-1] * len(features)
        begin = () if proposed is None else (proposed,)
        return self._search_on(features.device).query(features, left_out, *begin)

    def is_capturable(self, device):
        """Whether a CUDA graph can hold `query`: no host synchronisation."""
        return self._search_on(device).is_capturable

    def find_nearest(self, features, owner):
        """Find the nearest rows of a few patches, (n, n_features), by looking at all.

        Without those of an owner, or -1. Returns distances (n,), and where the rows are
        from, (n, 2); see `Bank`.
        """
        self._search_on(features.device)  # from here on the rows stay where they are
        counts = self.owners != owner
        rows = np.flatnonzero(counts) if counts.any() else np.arange(len(self))
        nearest = np.full(len(features), np.inf)
        found = np.zeros(len(features), dtype=int)
        for chunk in np.array_split(rows, -(-len(rows) // _ROWS_AT_A_TIME)):
            distances = torch.cdist(
                features.cpu(),
                torch.from_numpy(self.rows[chunk]),
                compute_mode="donot_use_mm_for_euclid_dist",
            )
            distances, row = (x.numpy() for x in distances.min(dim=1))
            is_nearer = distances < nearest
            nearest[is_nearer] = distances[is_nearer]
            found[is_nearer] = chunk[row[is_nearer]]
        return nearest, self.places[found]

    def _search_on(self, device):
        """Return the search on a device; rows are clustered and moved there once."""
        if self.centers is None:
            with _CLUSTERING:  # threads may share an index
                self._cluster(device)
        search = self._searches.get(device)
        if search is None:
            rows, starts, owners = self._take_needed()
            rows, centers = as_tensor(rows), as_tensor(self.centers)
            search = _make_search(device, rows, centers, starts, owners)
            self._searches = {device: search}
        return search

    def _take_needed(self):
        """Return rows, starts of clusters and owners, less what no search needs."""
        needed = find_needed(self.rows, self.owners)
        if needed is None:
            return self.rows, self.starts, self.owners
        starts = np.append(0, needed.cumsum())[self.starts]
        return self.rows[needed], starts, self.owners[needed]

    def _cluster(self, device):
        if self.centers is not None:
            return
        needed = find_needed(self.rows, self.owners)
        clusters = Clusters(self.rows, self._seed, device, is_counted=needed)
        order, places = clusters.order, self.places
        vars(self).update(  # at once: other threads see all of it or nothing
            rows=clusters.rows,
            owners=self.owners[order],
            places=None if places is None else places[order],
            starts=clusters.starts,
            centers=clusters.centers,
        )

    def _unsaved(self):
        return {"_searches": {}}


def _make_search(device, *clusters):
    """Return the search on a device; the rest is what `ClusterSearch` takes."""
    if device.type == "cpu":
        return ClusterSearch(*clusters)
    return make_gpu_search(*clusters, device)


def as_tensor(array):
    """Return an array as a tensor, a view, also where it cannot be written to."""
    return torch.from_numpy(as_writable(array))


def find_needed(rows, owners):
    """Tell which rows a search needs: not all of those that are the same, bit by bit.

    Identical images make for them, and so do backgrounds that are all black. A search
    that leaves out one owner at most finds one of two copies of different owners in any
    case: of rows that are the same it needs the first one, and the first one that
    another owner has. Without the rest every distance is what it is with them.

    Returns None if all are needed, else (n_rows,) of bool.
    """
    hashes = _hash_rows(rows)
    order = hashes.argsort(kind="stable")
    hashes = hashes[order]
    is_new = np.append(True, hashes[1:] != hashes[:-1])
    if is_new.all():
        return None
    first = np.empty_like(order)
    first[order] = order[is_new][is_new.cumsum() - 1]
    # Different rows may have the same hash by chance: they are no copies.
    for chunk in _split((~is_new).nonzero()[0]):
        chunk = order[chunk]
        is_other = (rows[chunk] != rows[first[chunk]]).any(axis=1)
        first[chunk[is_other]] = chunk[is_other]
    is_needed = _keep_two_owners(first, owners)
    return None if is_needed.all() else is_needed


def _hash_rows(rows):
    """Return a number of 64 bits for each row, the same for the same bits."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rng = np.random.RandomState(0)
    factors = rng.randint(2**63, size=bits.shape[1], dtype=np.uint64) | np.uint64(1)
    return np.concatenate([(chunk * factors).sum(axis=1) for chunk in _split(bits)])


def _split(rows):
    """Split rows into chunks of about `_HASHED`."""
    return np.array_split(rows, max(len(rows) // _HASHED, 1))


def _keep_two_owners(first, owners):
    """Tell which rows are needed, from the first that each is a copy of, or itself."""
    rows = np.arange(len(first))
    is_needed = first == rows
    others = rows[owners != owners[first]]  # ascending
    _, places = np.unique(first[others], return_index=True)
    is_needed[others[places]] = True
    return is_needed
