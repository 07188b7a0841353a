"""Exact search on a CPU, cluster by cluster."""

import itertools

import numpy as np
import torch

from skpatchsvdd._bank.clusters import ClusterBounds
from skpatchsvdd._bank.distances import TINY, Nearest, product_error
from skpatchsvdd._bank.sketches import Sketches
from skpatchsvdd._utils import as_columns, expand, halve_squares

# Products held at a time: as many as stay in the cache of a core. Of sketches fewer, so
# that libraries do not share them among threads, which would wait for each other longer
# than they work.
_PRODUCTS, _FEW_PRODUCTS = 2**19, 18_000
# Pairs of a query and a cluster, and queries, held at a time.
_PAIRS, _QUERIES = 2**12, 2**13
# Proposed distances are multiplied by this, which is more than a search may miss.
_MORE = 1 + 1e-4
# Nearest clusters tried one after the other for patches that have found nothing yet.
_N_TRIES = 4


class ClusterSearch:
    """Finds the nearest row of each query, exactly.

    A distance returned is that of a row, and at most (1 + 1e-5) times that of the
    nearest row, wherever the rows lie. (It is rounded as float32 sums are, too.)

    With a distance found already, a cluster is skipped if all of its rows must be
    farther away. In the others, so are rows of which sketches tell the same. Rows that
    may be nearer, for all that rounding allows, are compared by differences.
    """

    def __init__(self, rows, centers, starts, owners):
        has_rows = np.diff(starts) > 0
        self._rows, self._centers = rows, centers[torch.from_numpy(has_rows)]
        self._starts = starts[np.append(has_rows, True)]
        self._n_rows = np.diff(self._starts)
        self._owners = owners
        self._bounds = ClusterBounds(rows, self._centers, self._starts)
        self._sketches = Sketches(rows, self._centers, self._starts)
        self._error = product_error(rows.shape[1])

    def query(self, features, left_out, proposed=None):
        """Return distances to the nearest rows, (n_images, n_patches).

        Features are (n_images, n_patches, n_features). For each image `left_out` has
        the owner whose rows are left out, or -1. Where `proposed` has the distance of a
        row, (n_images, n_patches), and is not infinite, the search begins with that.
        """
        if proposed is None:
            proposed = torch.full_like(features[..., 0], torch.inf)
        # Image by image, so that no other image matters.
        images = zip(features, left_out, proposed, strict=True)
        return torch.stack([self._query_image(*image) for image in images])

    def _query_image(self, queries, owner, proposed):
        skipped = _Skipped(self._owners, owner, self._starts)
        pairs = zip(queries.split(_QUERIES), proposed.split(_QUERIES), strict=True)
        return torch.cat([self._query_some(*pair, skipped) for pair in pairs])

    def _query_some(self, queries, proposed, skipped):
        found = Nearest(queries, self._rows)
        # A little more, so that the row that it is of is found again.
        found.half_squares.copy_((_MORE * proposed).square() / 2)
        # numpy finds the smallest, and the few, faster than torch.
        squares, bounds = (x.numpy() for x in self._bounds(queries))
        self._guess(found, squares, skipped)
        nearest = found.half_squares.numpy()  # becomes smaller as rows are found
        places = (nearest[:, None] > bounds).ravel().nonzero()[0]
        queries, clusters = np.divmod(places, bounds.shape[1])
        clusters, queries = _sort_pairs(clusters, queries)
        for i in range(0, len(places), _PAIRS):
            cluster, query = clusters[i : i + _PAIRS], queries[i : i + _PAIRS]
            is_open = nearest[query] > bounds[query, cluster]
            pairs = cluster[is_open], query[is_open]
            self._look(found, skipped, *pairs, _find_below)
        return found.distances()

    def _guess(self, found, squares, skipped):
        """Find a row near to each query, in the cluster of the nearest centre."""
        for _ in range(_N_TRIES):
            pending = np.isinf(found.half_squares.numpy()).nonzero()[0]
            if len(pending) == 0:
                break
            nearest = squares.argmin(axis=1)[pending]
            squares[pending, nearest] = np.inf
            pairs = _sort_pairs(nearest, pending)
            self._look(found, skipped, *pairs, _find_smallest)

    def _look(self, found, skipped, clusters, queries, find):
        """Look at rows of clusters for some queries; clusters ascend.

        ``find(products, limits)`` tells where, in flattened products of sketches, these
        rows are.
        """
        is_vague = self._sketches.is_vague[clusters]
        pairs = clusters[~is_vague], queries[~is_vague]
        self._look_at_sketches(found, skipped, *pairs, find)
        self._look_at_all(found, skipped, clusters[is_vague], queries[is_vague])

    def _look_at_sketches(self, found, skipped, clusters, queries, find):
        runs = self._split(clusters, _FEW_PRODUCTS)
        clusters, queries = torch.from_numpy(clusters), torch.from_numpy(queries)
        x = found.queries.index_select(0, queries)
        short, own = self._sketches.shorten(x, clusters, runs)
        limits, _ = self._limit(found, clusters, queries, own, self._sketches.error)
        places = []
        for cluster, start, stop in runs:
            products = self._sketches.multiply(short[start:stop], cluster)
            skipped.hide(products, cluster)
            places.append(find(products, limits[start:stop]))
        self._offer(found, queries, runs, places)

    def _look_at_all(self, found, skipped, clusters, queries):
        runs = self._split(clusters, _PRODUCTS)
        queries = torch.from_numpy(queries)
        places = [
            self._compare(found, skipped, cluster, queries[start:stop])
            for cluster, start, stop in runs
        ]
        self._offer(found, queries, runs, places)

    def _compare(self, found, skipped, cluster, queries):
        """Tell where rows to look at are, by expanded squares around the centre."""
        part = slice(*self._starts[cluster : cluster + 2])
        rows = self._rows[part] - self._centers[cluster]
        x = found.queries[queries] - self._centers[cluster]
        own = halve_squares(x)
        limits, errors = self._limit(found, cluster, queries, own, self._error)
        # Rows are on the left here: the half squares are theirs, one for each line.
        half_squares = self._bounds.half_squares[part, None]
        products = expand(half_squares, rows, as_columns(x)).numpy()
        skipped.hide(products.T, cluster)
        # What is larger by two errors than another one is not the nearest.
        limits = np.minimum(limits.T, products.min(axis=0) + 2 * errors.T)
        rows, pairs = np.divmod(_find_below(products, limits), len(x))
        return pairs * len(products) + rows

    def _limit(self, found, clusters, queries, own, error):
        """Return what products must fall below, and their errors, (n_queries, 1)."""
        errors = error * (2 * own + self._bounds.radii[clusters].square())
        errors.clamp_(min=TINY)
        limits = found.limits(queries, own, errors)
        return limits.float().numpy()[:, None], errors.numpy()[:, None]

    def _split(self, clusters, n_products):
        """Cut pairs into runs of one cluster each: its number, start and stop."""
        numbers, starts = np.unique(clusters, return_index=True)
        spans = itertools.pairwise([*starts.tolist(), len(clusters)])
        sizes = np.maximum(n_products // self._n_rows[numbers], 1)
        columns = zip(numbers.tolist(), spans, sizes.tolist(), strict=True)
        return [
            (number, i, min(i + size, stop))
            for number, (start, stop), size in columns
            for i in range(start, stop, size)
        ]

    def _offer(self, found, queries, runs, places):
        """Compare queries with the rows that places in the products of runs mean."""
        if not runs:
            return
        clusters, starts, _ = np.repeat(runs, [len(x) for x in places], axis=0).T
        pairs, rows = np.divmod(np.concatenate(places), self._n_rows[clusters])
        pairs, rows = pairs + starts, rows + self._starts[clusters]
        found.offer(queries[torch.from_numpy(pairs)], torch.from_numpy(rows))


class _Skipped:
    """Rows that are left out, by cluster."""

    def __init__(self, owners, owner, starts):
        self._rows = np.flatnonzero(owners == owner) if owner >= 0 else np.arange(0)
        self._ends = np.searchsorted(self._rows, starts).tolist()
        self._starts = starts

    def hide(self, products, cluster):
        """Make their products with queries, (n, n_rows), infinite."""
        start, stop = self._ends[cluster : cluster + 2]
        if start < stop:
            products[:, self._rows[start:stop] - self._starts[cluster]] = np.inf


def _find_smallest(products, _):
    """Tell where the smallest product of each line is, if it is finite."""
    first = np.arange(0, products.size, products.shape[1])
    places = first + products.argmin(axis=1)
    return places[np.isfinite(products.ravel()[places])]


def _find_below(products, limits):
    """Tell where products are below the limits of their lines."""
    return (products < limits).ravel().nonzero()[0]


def _sort_pairs(clusters, queries):
    order = clusters.argsort(kind="stable")
    return clusters[order], queries[order]
