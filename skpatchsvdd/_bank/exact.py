"""Exact search: the same promise on a CPU and on a GPU."""

from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._bank.clusters import Clusters
from skpatchsvdd._bank.copies import find_needed
from skpatchsvdd._bank.exact_cpu import ClusterSearch
from skpatchsvdd._bank.exact_gpu import GpuSearch
from skpatchsvdd._utils import Saved, as_writable, check_mapped, make_lock

# Rows that a few patches are compared with at a time.
_ROWS_AT_A_TIME = 2**16
_CLUSTERING = make_lock()


class Bank(NamedTuple):
    """Features of normal patches of one scale.

    Attributes
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Features, float32.
    owners : ndarray of shape (n_rows,)
        Whose each row is: the number of an image, or of a group of images.
    places : ndarray of shape (n_rows, 2) or None
        Where each row is from: the number of an image, and of a patch in it.
    """

    rows: np.ndarray
    owners: np.ndarray
    places: np.ndarray | None = None


class ExactIndex(Saved):
    """Exact search in torch.

    From the first search on, the rows lie in clusters, most of which can be skipped.
    Copies of rows are not searched; see `find_needed`. Candidates are found by the
    expanded square and decided by the difference: a distance is that of a row, and at
    most (1 + 1e-5) times that of the nearest one.

    Parameters
    ----------
    bank : Bank
        Normal features.
    seed : int
        Seed of the clusters, which change how fast a search is, not what it finds.
    """

    gives_bounds = False
    _saved = (
        "rows",
        "owners",
        "places",
        "centers",
        "starts",
        "_seed",
        "_has_others",
    )

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

    def query(self, features, left_out=None):
        """Return the distance of each patch to the nearest row of the bank.

        Parameters
        ----------
        features : tensor of shape (n_images, n_patches, n_features)
            float32, on any device.
        left_out : list of int of length n_images, or None
            For each image, the owner whose rows are left out, or -1. They are not if
            there are no others.

        Returns
        -------
        distances : tensor of shape (n_images, n_patches)
        """
        if left_out is None or not self._has_others:
            left_out = [-1] * len(features)
        return self._search_on(features.device).query(features, left_out)

    def is_capturable(self, device):
        """Whether a CUDA graph can hold `query`: no host synchronisation."""
        return device.type == "cuda" and self._search_on(device).is_capturable

    def query_exactly(self, features, left_out):
        """Return the same as `query`."""
        return self.query(features, left_out)

    def find_nearest(self, features, owner):
        """Find the nearest rows of a few patches by looking at all.

        Parameters
        ----------
        features : tensor of shape (n, n_features)
            float32, of patches of one image.
        owner : int
            The owner whose rows are left out, or -1.

        Returns
        -------
        distances : ndarray of shape (n,)
        places : ndarray of shape (n, 2)
            Where the nearest rows are from; see `Bank`.
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
    return GpuSearch(*clusters, device)


def as_tensor(array):
    """Return an array as a tensor, a view, also where it cannot be written to."""
    return torch.from_numpy(as_writable(array))
