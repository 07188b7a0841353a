"""Exact search on a CPU, cluster by cluster, by sketches of rows first."""

import itertools

import numpy as np
import torch

from skpatchsvdd._bank.clusters import ClusterBounds
from skpatchsvdd._bank.distances import TINY, Nearest, product_error
from skpatchsvdd._bank.sketches import Sketches
from skpatchsvdd._utils import as_columns, expand, halve_squares

# Products held at a time: few, so that libraries do not share them among threads, which
# would wait for each other longer than they work.
_PRODUCTS = 18_000
# Pairs of a query and a cluster, and queries, held at a time.
_PAIRS, _QUERIES = 2**12, 2**13
# The fraction of rows that sketches may leave. From about there on comparing all rows
# is faster than looking at those.
_MANY = 1 / 8
# Proposed distances are multiplied by this, which is more than a search may miss.
_MORE = 1 + 1e-4


class ClusterSearch:
    """Finds the nearest row of each query, exactly.

    A distance returned is that of a row, and at most (1 + 1e-5) times that of the
    nearest row, wherever the rows lie. (It is rounded as float32 sums are, too.)

    With a distance found already, a cluster is skipped if all of its rows must be
    farther away. In the others, so are rows of which sketches tell the same. Rows that
    may be nearer, for all that rounding allows, are compared by differences.
    """

    is_capturable = False

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
        parts = zip(queries.split(_QUERIES), proposed.split(_QUERIES), strict=True)
        return torch.cat([self._query_part(*part, owner) for part in parts])

    def _query_part(self, queries, proposed, owner):
        found = Nearest(queries, self._rows)
        # A little more, so that the row that it is of is found again.
        found.half_squares.copy_((_MORE * proposed).square() / 2)
        # numpy finds the smallest, and the few, faster than torch.
        squares, bounds = (x.numpy() for x in self._bounds(queries))
        pairs = _sort_pairs(squares.argmin(axis=1), np.arange(len(queries)))
        self._look(found, owner, *pairs, _find_smallest)
        nearest = found.half_squares.numpy()  # becomes smaller as rows are found
        places = (nearest[:, None] > bounds).ravel().nonzero()[0]
        queries, clusters = np.divmod(places, bounds.shape[1])
        clusters, queries = _sort_pairs(clusters, queries)
        for i in range(0, len(places), _PAIRS):
            cluster, query = clusters[i : i + _PAIRS], queries[i : i + _PAIRS]
            is_open = nearest[query] > bounds[query, cluster]
            self._look(found, owner, cluster[is_open], query[is_open], _find_below)
        return found.distances()

    def _look(self, found, owner, clusters, queries, find):
        """Look at rows of clusters for some queries; clusters ascend.

        ``find(products, limits)`` tells where, in flattened products of sketches, these
        rows are.
        """
        runs = self._split(clusters)
        clusters, queries = torch.from_numpy(clusters), torch.from_numpy(queries)
        x = found.queries.index_select(0, queries)
        short, own = self._sketches.shorten(x, clusters, runs)
        limits, _ = self._limit(found, clusters, queries, own, self._sketches.error)
        places = []
        for cluster, start, stop in runs:
            products = self._sketches.multiply(short[start:stop], cluster)
            self._leave_out(owner, cluster, products)
            place = find(products, limits[start:stop])
            if len(place) > _MANY * products.size:
                place = self._compare(found, owner, cluster, queries[start:stop])
            places.append(place)
        self._offer(found, queries, runs, places)

    def _compare(self, found, owner, cluster, queries):
        """Tell where rows to look at are, by expanded squares around the centre."""
        part = slice(*self._starts[cluster : cluster + 2])
        rows = self._rows[part] - self._centers[cluster]
        x = found.queries[queries] - self._centers[cluster]
        own = halve_squares(x)
        limits, errors = self._limit(found, cluster, queries, own, self._error)
        half_squares = self._bounds.half_squares[part]
        products = expand(half_squares, x, as_columns(rows)).numpy()
        self._leave_out(owner, cluster, products)
        # What is larger by two errors than another one is not the nearest.
        least = products.min(axis=1, keepdims=True) + 2 * errors
        return _find_below(products, np.minimum(limits, least))

    def _leave_out(self, owner, cluster, products):
        """Make products with an owner's rows infinite; -1 is nobody."""
        if owner >= 0:
            part = slice(*self._starts[cluster : cluster + 2])
            products[:, self._owners[part] == owner] = np.inf

    def _limit(self, found, clusters, queries, own, error):
        """Return what products must fall below, and their errors, (n_queries, 1)."""
        errors = error * (2 * own + self._bounds.radii[clusters].square())
        errors.clamp_(min=TINY)
        limits = found.limits(queries, own, errors)
        return limits.float().numpy()[:, None], errors.numpy()[:, None]

    def _split(self, clusters):
        """Cut pairs into runs of one cluster each: its number, start and stop."""
        numbers, starts = np.unique(clusters, return_index=True)
        spans = itertools.pairwise([*starts.tolist(), len(clusters)])
        sizes = np.maximum(_PRODUCTS // self._n_rows[numbers], 1)
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
