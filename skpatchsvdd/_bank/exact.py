"""Exact search, the same promise on a CPU and on a GPU; copies that it leaves out."""

import itertools
import weakref
from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._bank.clusters import (
    TINY,
    ClusterBounds,
    Clusters,
    Nearest,
    Sketches,
    product_error,
)
from skpatchsvdd._bank.exact_gpu import make_gpu_search
from skpatchsvdd._utils import (
    Saved,
    as_columns,
    as_writable,
    check_mapped,
    expand,
    halve_squares,
    make_lock,
)

# Rows that a few patches are compared with at a time.
_ROWS_AT_A_TIME = 2**16
# Rows hashed or compared at a time: as many as stay in the cache of a core.
_HASHED = 2**12
_SEARCHING = make_lock()
# Products held at a time: few, so that libraries do not share them among threads, which
# would wait for each other longer than they work.
_PRODUCTS = 18_000
# Pairs of a query and a cluster, and queries, held at a time.
_PAIRS, _QUERIES = 2**12, 2**13
# The fraction of rows that sketches may leave. From about there on comparing all rows
# is faster than looking at those.
_MANY = 1 / 32
# Proposed distances are multiplied by this, which is more than a search may miss.
_MORE = 1 + 1e-4


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
        return self.search_on(features.device).query(features, left_out, *begin)

    def find_nearest(self, features, owner):
        """Find the nearest rows of a few patches, (n, n_features), by looking at all.

        Without those of an owner, or -1. Returns distances (n,), and where the rows are
        from, (n, 2); see `Bank`.
        """
        self.search_on(features.device)  # from here on the rows stay where they are
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

    def search_on(self, device):
        """Return the search on a device, for which rows are clustered, and moved, once.

        It stays until there is one on another device, or as long as somebody holds it.
        """
        search = self._searches.get(device)
        if search is None:
            with _SEARCHING:  # threads may share an index
                search = self._searches.get(device)
                if search is None:
                    search = self._last = self._make_search(device)
                    self._searches[device] = search
        return search

    def _make_search(self, device):
        if self.centers is None:
            self._cluster(device)
        rows, starts, owners = self._take_needed()
        rows, centers = as_tensor(rows), as_tensor(self.centers)
        return _make_search(device, rows, centers, starts, owners)

    def _take_needed(self):
        """Return rows, starts of clusters and owners, less what no search needs."""
        needed = find_needed(self.rows, self.owners)
        if needed is None:
            return self.rows, self.starts, self.owners
        starts = np.append(0, needed.cumsum())[self.starts]
        return self.rows[needed], starts, self.owners[needed]

    def _cluster(self, device):
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
        return {"_searches": weakref.WeakValueDictionary(), "_last": None}


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
        places, done = [], 0
        for i, (cluster, start, stop) in enumerate(runs):
            if start < done:  # compared with those before
                places.append(np.empty(0, dtype=int))
                continue
            products = self._sketches.multiply(short[start:stop], cluster)
            self._leave_out(owner, cluster, products)
            place = find(products, limits[start:stop])
            if len(place) > _MANY * products.size:
                # Sketches tell little of this cluster: the rest does without them.
                done = max(x for number, _, x in runs[i:] if number == cluster)
                place = self._compare(found, owner, cluster, queries[start:done])
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
            columns = np.flatnonzero(self._owners[part] == owner)
            if len(columns):
                products[:, columns] = np.inf

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
