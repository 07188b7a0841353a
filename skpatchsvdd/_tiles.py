"""Exact search on a GPU, in few large calls."""

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._clusters import ClusterBounds
from skpatchsvdd._device import halve_without_memory
from skpatchsvdd._nearest import Nearest, product_error

# Rows of a cluster, and queries that look at them, of one small matrix product.
_TILE_ROWS = 256
_TILE_QUERIES = 64
# Queries that do not count, to fill up tiles with. One alone would be waited for by
# all threads that write to it.
_N_FILLERS = 4096
# Queries, and products and copied numbers, held at a time.
_QUERIES = 2**16
_NUMBERS = 2**27
_LOW_HALF = 2**32 - 1
# Share of the rows from which on a query is faster compared with all of them.
_MANY = 0.3


class WholeSearch:
    """Compares each query with all rows: the fastest way where they are few.

    Distances are as exact as those of `ClusterSearch`. Parameters are those of
    `TileSearch`.
    """

    def __init__(self, rows, centers, starts, owners):
        owners = torch.from_numpy(owners).to(rows.device)
        is_row = torch.ones_like(owners, dtype=torch.bool)
        self._rows = _align(rows)
        self._all = _AllRows(self._rows, is_row, owners)

    def query(self, features, places):
        """Return the distance of each patch to the nearest row.

        Parameters and return value are those of `ClusterSearch.query`.
        """
        size = max(_NUMBERS // len(self._rows), 1)
        return _query_parts(self._query_some, features, places, size)

    def _query_some(self, queries, places):
        found = Nearest(queries, self._rows)
        chosen = torch.arange(len(queries), device=queries.device)
        self._all.look(found, chosen, places)
        return found.distances()


class TileSearch:
    """Finds the nearest row of each query, skipping clusters as on a CPU.

    Distances are as exact as those of `ClusterSearch`. Each query looks at the nearest
    cluster first, then at all that may hold a row that is nearer than the one found
    there. The clusters are cut into tiles of rows, their queries into tiles of
    queries, and all pairs of tiles are multiplied together in few large calls. A query
    for which many clusters remain is compared with all rows.

    Parameters
    ----------
    rows, centers : tensors
        See `Clusters`; on the device.
    starts : ndarray of shape (n_clusters + 1,)
        Where each cluster begins, and the end of the last one.
    owners : ndarray of shape (n_rows,)
        Which image each row is from.
    """

    def __init__(self, rows, centers, starts, owners):
        rows, centers = _align(rows), _align(centers)
        n_rows = np.diff(starts)
        n_tiles = -(-n_rows // _TILE_ROWS)
        # Where rows go when every cluster is padded to whole tiles.
        shift = np.concatenate([[0], np.cumsum(n_tiles * _TILE_ROWS - n_rows)[:-1]])
        place = np.arange(len(rows)) + shift.repeat(n_rows)
        place = torch.from_numpy(place).to(rows.device)
        size = int(n_tiles.sum()) * _TILE_ROWS
        self._bounds = ClusterBounds(rows, centers, starts)
        self._rows = rows.new_zeros(size, rows.shape[1]).index_copy_(0, place, rows)
        self._half_squares = rows.new_full((size,), torch.inf)
        self._half_squares.index_copy_(0, place, self._bounds.half_squares)
        owners = torch.from_numpy(owners).to(place)
        self._owners = place.new_full((size,), -2).index_copy_(0, place, owners)
        self._n_tiles = torch.from_numpy(n_tiles).to(rows.device)
        self._first_tile = self._n_tiles.cumsum(0) - self._n_tiles
        cluster = torch.arange(len(centers), device=rows.device)
        self._cluster = cluster.repeat_interleave(self._n_tiles * _TILE_ROWS)
        self._differences = self._rows - centers[self._cluster]
        self._error = product_error(rows.shape[1])
        self._centers = centers
        self._all = None

    def query(self, features, places):
        """Return the distance of each patch to the nearest row.

        Parameters and return value are those of `ClusterSearch.query`.
        """
        return _query_parts(self._query_some, features, places, _QUERIES)

    def _query_some(self, queries, places):
        squares, bounds = self._bounds(queries)
        found = _Found(queries, places, self._rows)
        nearest = squares.argmin(dim=1, keepdim=True)
        due = torch.zeros_like(bounds, dtype=torch.bool).scatter_(1, nearest, True)
        self._visit(found, due, self._offer_smallest)
        found.decide_smallest()
        half_squares = found.half_squares[: found.n]
        due = bounds < half_squares[:, None]
        n_tiles = due.float() @ self._n_tiles.float()
        many = n_tiles > _MANY * self._n_tiles.sum()
        far = (many | torch.isinf(half_squares)).nonzero()[:, 0]
        due[far] = False
        self._visit(found, due, self._offer_near)
        if len(far):
            self._look_at_all(found, far)
        return found.distances()[: found.n]

    def _visit(self, found, due, offer):
        """Look at the clusters that are due, a mask (n_queries, n_clusters).

        ``offer(found, queries, tiles, clusters)`` is called with some tiles of queries,
        (n, n_queries), and the tile of rows that each of them looks at.
        """
        clusters, queries = due.T.nonzero().unbind(dim=1)  # clusters ascend
        counts = due.sum(dim=0)
        n_parts = (counts + _TILE_QUERIES - 1) // _TILE_QUERIES  # tiles of queries
        first_part = n_parts.cumsum(0) - n_parts
        n_pairs = n_parts * self._n_tiles  # every one meets every tile of rows
        first_pair = n_pairs.cumsum(0) - n_pairs
        n_all_parts, n_all_pairs = torch.stack([n_parts.sum(), n_pairs.sum()]).tolist()
        # Tiles of queries, filled up with some that do not count.
        parts = torch.arange(n_all_parts * _TILE_QUERIES, device=due.device)
        parts = parts % _N_FILLERS + found.n
        begin = first_part * _TILE_QUERIES - (counts.cumsum(0) - counts)
        slot = begin[clusters] + torch.arange(len(queries), device=due.device)
        parts = parts.index_copy_(0, slot, queries).view(-1, _TILE_QUERIES)
        cluster = torch.arange(len(counts), device=due.device)
        cluster = cluster.repeat_interleave(n_pairs, output_size=n_all_pairs)
        pair = torch.arange(n_all_pairs, device=due.device) - first_pair[cluster]
        n_tiles = self._n_tiles[cluster]
        part = first_part[cluster] + pair // n_tiles
        tile = self._first_tile[cluster] + pair % n_tiles
        n_features = self._rows.shape[1]
        each = _TILE_ROWS * n_features + _TILE_QUERIES * (n_features + 2 * _TILE_ROWS)
        size = max(_NUMBERS // each, 1)
        trios = zip(*(x.split(size) for x in (part, tile, cluster)), strict=True)
        for some, tiles, clusters in trios:
            offer(found, parts[some], tiles, clusters)

    def _look_at_all(self, found, chosen):
        """Look at all rows, for some of the queries."""
        if self._all is None:
            is_row = torch.isfinite(self._half_squares)
            self._all = _AllRows(self._rows, is_row, self._owners)
        for some in chosen.split(max(_NUMBERS // len(self._rows), 1)):
            places = None if found.places is None else found.places[some]
            self._all.look(found, some, places)

    def _offer_smallest(self, found, queries, tile, cluster):
        """Offer the row of the smallest product."""
        products, own = self._multiply(found, queries, tile, cluster)
        smallest, row = products.min(dim=2)
        found.offer_about(queries, smallest + own, row + tile[:, None] * _TILE_ROWS)

    def _offer_near(self, found, queries, tile, cluster):
        """Offer all rows that may be nearer than what has been found."""
        products, own = self._multiply(found, queries, tile, cluster)
        radii = self._bounds.radii[cluster][:, None]
        errors = self._error * (2 * own + radii.square())
        near = products < found.limits(queries, own, errors)[:, :, None]
        pair, query, row = near.nonzero().unbind(dim=1)
        found.offer(queries[pair, query], row + tile[pair] * _TILE_ROWS)

    def _multiply(self, found, queries, tile, cluster):
        """Return the products of tiles, and half the squares of the queries."""
        rows, half_squares, owners = (
            x.view(-1, _TILE_ROWS, *x.shape[1:])[tile]
            for x in (self._differences, self._half_squares, self._owners)
        )
        x = found.queries[queries] - self._centers[cluster][:, None]
        products = torch.baddbmm(half_squares[:, None], x, rows.mT, alpha=-1)
        if found.places is not None:
            same = found.places[queries][:, :, None] == owners[:, None]
            products.masked_fill_(same, torch.inf)
        return products, x.square().sum(dim=2) / 2


class _AllRows:
    """Rows around their mean, all of which are looked at.

    Parameters
    ----------
    rows : tensor of shape (n_rows, n_features)
        The rows.
    is_row : tensor of bool of shape (n_rows,)
        Which of them are not there to fill up.
    owners : tensor of shape (n_rows,)
        Which image each row is from.
    """

    def __init__(self, rows, is_row, owners):
        self._center = rows[is_row].mean(dim=0)
        self._differences = rows - self._center
        squares = self._differences.square().sum(dim=1)
        self._largest = squares[is_row].max()
        self._half_squares = torch.where(is_row, squares / 2, torch.inf)
        self._owners = owners
        self._error = product_error(rows.shape[1])

    def look(self, found, queries, places):
        """Offer the row of the smallest product, then all that may be nearer.

        Parameters
        ----------
        found : Nearest
            What has been found before, of these rows.
        queries : tensor of int of shape (n,)
            Places of some queries.
        places : tensor of shape (n,) or None
            For each of them, the image whose rows are left out.
        """
        x = found.queries[queries] - self._center
        products = torch.addmm(self._half_squares, x, self._differences.T, alpha=-1)
        if places is not None:
            products.masked_fill_(places[:, None] == self._owners, torch.inf)
        smallest, row = products.min(dim=1)
        has_row = torch.isfinite(smallest)
        found.offer(queries[has_row], row[has_row])
        own = x.square().sum(dim=1) / 2
        errors = self._error * (2 * own + self._largest)
        near = products < found.limits(queries, own, errors)[:, None]
        query, row = near.nonzero().unbind(dim=1)
        found.offer(queries[query], row)


def _query_parts(query, features, places, size):
    """Query the patches of some images in parts that fit into memory."""
    queries = _align(features.flatten(0, 1))
    out = torch.tensor(places, device=queries.device)
    out = out.repeat_interleave(features.shape[1]) if max(places) >= 0 else None

    def search(size):
        parts = range(0, len(queries), size)
        outs = [None if out is None else out[i : i + size] for i in parts]
        pairs = zip(queries.split(size), outs, strict=True)
        return torch.cat([query(*pair) for pair in pairs])

    return halve_without_memory(search, size).view(features.shape[:2])


def _align(x):
    """Append columns of zeros up to a multiple of eight, as fast products need."""
    return F.pad(x, (0, -x.shape[1] % 8))


class _Found(Nearest):
    """What has been found so far for each of some queries, and for some fillers.

    What is offered by about its half square is one integer with the row it belongs to,
    of which the smallest can be kept in any order: the bits of a float that is not
    negative, read as an integer, grow with it.
    """

    def __init__(self, queries, places, rows):
        super().__init__(F.pad(queries, (0, 0, 0, _N_FILLERS)), rows)
        self.n = len(queries)
        self.half_squares[self.n :] = 0  # fillers need nothing
        if places is not None:
            places = F.pad(places, (0, _N_FILLERS), value=-1)
        self.places = places
        nothing = torch.full_like(self.half_squares, torch.inf)
        self._keys = nothing.view(torch.int32).long() << 32

    def offer_about(self, queries, half_squares, rows):
        """Remember the row of the smallest half square for each query."""
        bits = half_squares.clamp_(min=0).view(torch.int32).long()
        keys = (bits << 32) | rows
        self._keys.scatter_reduce_(0, queries.flatten(), keys.flatten(), "amin")

    def decide_smallest(self):
        """Offer the rows that were remembered."""
        half_squares = (self._keys[: self.n] >> 32).int().view(torch.float32)
        queries = torch.isfinite(half_squares).nonzero()[:, 0]
        self.offer(queries, self._keys[queries] & _LOW_HALF)
