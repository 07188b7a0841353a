"""Exact search on a CPU, cluster by cluster."""

import numpy as np
import torch

from skpatchsvdd._bank.clusters import ClusterBounds
from skpatchsvdd._bank.distances import TINY, Nearest, expand, product_error

# Products, pairs of a query and a cluster, and queries, held at a time: as many as stay
# in the cache of a core.
_PRODUCTS = 2**19

_PAIRS = 2**13

_QUERIES = 2**13


# Nearest clusters tried one after the other for patches that have found nothing yet.
_N_TRIES = 4


class ClusterSearch:
    """Finds the nearest row of each query, exactly.

    A distance returned is that of a row, and at most (1 + 1e-5) times that of the
    nearest row, wherever the rows lie. (It is rounded as float32 sums are, too.)

    With a distance found already, a cluster is skipped if all of its rows must be
    farther away. In the others, rows are compared by expanded squares around the
    centre, and those that may be nearer, for all that rounding allows, by differences.

    Parameters
    ----------
    rows, centers, starts : tensors and ndarray
        See `Clusters`.
    owners : ndarray of shape (n_rows,)
        The owner, image or group, of each row.
    """

    def __init__(self, rows, centers, starts, owners):
        self._rows = rows
        self._centers = centers
        self._starts = starts.tolist()
        self._owners = owners
        self._bounds = ClusterBounds(rows, centers, starts)
        self._half_squares = self._bounds.half_squares
        self._error = product_error(rows.shape[1])

    def query(self, features, left_out):
        """Return the distance of each patch to the nearest row.

        Parameters
        ----------
        features : tensor of shape (n_images, n_patches, n_features)
            In the coordinates of the rows.
        left_out : list of int of length n_images
            For each image, the image whose rows are left out, or -1.

        Returns
        -------
        distances : tensor of shape (n_images, n_patches)
        """
        # Image by image, so that no other image matters.
        pairs = zip(features, left_out, strict=True)
        return torch.stack([self._query_image(*pair) for pair in pairs])

    def _query_image(self, queries, owner):
        skipped = _Skipped(self._owners, owner, self._starts)
        parts = queries.split(_QUERIES)
        return torch.cat([self._query_some(part, skipped) for part in parts])

    def _query_some(self, queries, skipped):
        found = Nearest(queries, self._rows)
        untried, bounds = self._bounds(queries)
        for _ in range(_N_TRIES):
            pending = torch.isinf(found.half_squares).nonzero()[:, 0]
            if len(pending) == 0:
                break
            nearest = untried[pending].argmin(dim=1)
            self._visit_pairs(found, skipped, *_sort_pairs(nearest, pending))
            untried[pending, nearest] = torch.inf
            bounds[pending, nearest] = torch.inf
        clusters, rows = (found.half_squares > bounds.T).nonzero().unbind(dim=1)
        self._visit_pairs(found, skipped, clusters, rows)
        return found.distances()

    def _visit_pairs(self, found, skipped, clusters, queries):
        """Look at the rows of a cluster for some queries; clusters ascend."""
        parts = zip(clusters.split(_PAIRS), queries.split(_PAIRS), strict=True)
        for cluster, query in parts:
            x = found.queries[query] - self._centers[cluster]
            own = torch.linalg.vecdot(x, x) / 2
            errors = self._error * (2 * own + self._bounds.radii[cluster].square())
            errors.clamp_(min=TINY)
            limits = found.limits(query, own, errors)
            # A transposed view instead of a copy is slow on ARM.
            columns = torch.cat([x.T, limits[None], 2 * errors[None]])
            near = [
                self._visit(number, columns[:, start:stop], start, skipped)
                for number, start, stop in self._split(cluster)
            ]
            if near:
                rows, pairs = map(np.concatenate, zip(*near, strict=True))
                found.offer(query[pairs], torch.from_numpy(rows))

    def _split(self, clusters):
        """Cut pairs into runs of one cluster each: its number, start and stop."""
        numbers, counts = clusters.unique_consecutive(return_counts=True)
        stop = 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            start, stop = stop, stop + count
            n_rows = self._starts[number + 1] - self._starts[number]
            size = max(_PRODUCTS // max(n_rows, 1), 1)
            for i in range(start, stop if n_rows else start, size):
                yield number, i, min(i + size, stop)

    def _visit(self, cluster, columns, first_pair, skipped):
        """Return pairs of a row and a query that may be nearer than what was found.

        In the columns are queries, less the centre, their limits and errors.
        """
        start, stop = self._starts[cluster], self._starts[cluster + 1]
        rows = self._rows[start:stop] - self._centers[cluster]
        # Rows are on the left here: the half squares are theirs, one for each line.
        products = expand(self._half_squares[start:stop, None], rows, columns[:-2])
        left_out = skipped.within(cluster)
        if len(left_out):
            products[left_out] = torch.inf
        # What is larger by two errors than another one is not the nearest.
        limits = torch.minimum(products.amin(dim=0) + columns[-1], columns[-2])
        # numpy finds the few faster than torch.
        near = np.flatnonzero(products.numpy() < limits.numpy())
        rows, queries = np.divmod(near, len(limits))
        return rows + start, queries + first_pair


class _Skipped:
    """Rows that are left out, by cluster."""

    def __init__(self, owners, owner, starts):
        self._rows = np.flatnonzero(owners == owner) if owner >= 0 else np.arange(0)
        self._ends = np.searchsorted(self._rows, starts)
        self._starts = starts

    def within(self, cluster):
        """Return the indices of those rows in a cluster."""
        rows = self._rows[self._ends[cluster] : self._ends[cluster + 1]]
        return torch.from_numpy(rows - self._starts[cluster])


def _sort_pairs(clusters, queries):
    order = clusters.argsort(stable=True)
    return clusters[order], queries[order]
