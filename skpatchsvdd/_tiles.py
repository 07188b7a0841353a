"""Exact search on a GPU, in few large calls."""

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._clusters import ClusterBounds
from skpatchsvdd._device import halve_without_memory

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

    Parameters are those of `TileSearch`.
    """

    def __init__(self, rows, centers, starts, owners):
        cluster = np.arange(len(centers)).repeat(np.diff(starts))
        rows = rows + centers[torch.from_numpy(cluster).to(rows.device)]
        self._rows = _align(rows)
        self._half_squares = self._rows.square().sum(dim=1) / 2
        self._owners = torch.from_numpy(owners).to(rows.device)

    def query(self, features, places):
        """Return the distance of each patch to the nearest row.

        Parameters and return value are those of `ClusterSearch.query`.
        """
        size = max(_NUMBERS // len(self._rows), 1)
        return _query_parts(self._query_some, features, places, size)

    def _query_some(self, queries, places):
        smallest, row = _nearest(
            queries, places, self._rows, self._half_squares, self._owners
        )
        distances = (queries - self._rows[row]).square_().sum(dim=1).sqrt()
        return torch.where(torch.isinf(smallest), torch.inf, distances)


class TileSearch:
    """Finds the nearest row of each query, exactly, skipping clusters as on a CPU.

    The clusters that remain are cut into tiles of rows, their queries into tiles of
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
        half_squares = rows.square().sum(dim=1) / 2
        self._rows = rows.new_zeros(size, rows.shape[1]).index_copy_(0, place, rows)
        self._half_squares = rows.new_full((size,), torch.inf)
        self._half_squares.index_copy_(0, place, half_squares)
        owners = torch.from_numpy(owners).to(place)
        self._owners = place.new_full((size,), -2).index_copy_(0, place, owners)
        self._n_tiles = torch.from_numpy(n_tiles).to(rows.device)
        self._first_tile = self._n_tiles.cumsum(0) - self._n_tiles
        cluster = torch.arange(len(centers), device=rows.device)
        self._cluster = cluster.repeat_interleave(self._n_tiles * _TILE_ROWS)
        self._bounds = ClusterBounds(centers, half_squares, starts)
        self._centers = centers
        self._whole = None

    def query(self, features, places):
        """Return the distance of each patch to the nearest row.

        Parameters and return value are those of `ClusterSearch.query`.
        """
        return _query_parts(self._query_some, features, places, _QUERIES)

    def _query_some(self, queries, places):
        squares, bounds = self._bounds(queries)
        found = _Found(queries, places)
        nearest = squares.argmin(dim=1, keepdim=True)
        due = torch.zeros_like(bounds, dtype=torch.bool).scatter_(1, nearest, True)
        self._visit(found, due)
        bounds.scatter_(1, nearest, torch.inf)
        due = bounds < found.half_squares()[:, None]
        n_tiles = due.float() @ self._n_tiles.float()
        far = (n_tiles > _MANY * self._n_tiles.sum()).nonzero()[:, 0]
        due[far] = False
        self._visit(found, due)
        if len(far):
            self._look_at_all(found, far)
        # The difference, which has all its digits, of the nearest row alone.
        row = found.row()
        difference = queries - self._centers[self._cluster[row]] - self._rows[row]
        distances = difference.square_().sum(dim=1).sqrt()
        return torch.where(torch.isinf(found.half_squares()), torch.inf, distances)

    def _visit(self, found, due):
        """Look at the clusters that are due, a mask (n_queries, n_clusters)."""
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
            self._multiply(found, parts[some], tiles, clusters)

    def _look_at_all(self, found, chosen):
        """Look at all rows, for some of the queries."""
        if self._whole is None:
            self._whole = self._rows + self._centers[self._cluster]
            squares = self._whole.square().sum(dim=1)
            is_row = torch.isfinite(self._half_squares)
            self._whole_half_squares = torch.where(is_row, squares / 2, torch.inf)
        for some in chosen.split(max(_NUMBERS // len(self._whole), 1)):
            x = found.queries[some]
            places = None if found.places is None else found.places[some]
            smallest, row = _nearest(
                x, places, self._whole, self._whole_half_squares, self._owners
            )
            smallest += x.square().sum(dim=1) / 2
            found.offer(some, smallest, row)

    def _multiply(self, found, queries, tile, cluster):
        """Look at one tile of rows for each tile of queries, (n, n_queries)."""
        rows, half_squares, owners = (
            x.view(-1, _TILE_ROWS, *x.shape[1:])[tile]
            for x in (self._rows, self._half_squares, self._owners)
        )
        x = found.queries[queries] - self._centers[cluster][:, None]
        products = torch.baddbmm(half_squares[:, None], x, rows.mT, alpha=-1)
        if found.places is not None:
            same = found.places[queries][:, :, None] == owners[:, None]
            products.masked_fill_(same, torch.inf)
        smallest, row = products.min(dim=2)
        smallest += x.square().sum(dim=2) / 2
        found.offer(queries, smallest, row + tile[:, None] * _TILE_ROWS)


def _nearest(queries, places, rows, half_squares, owners):
    """Return half the squared distance of each query to its nearest row, and the row.

    Half the square of the query itself is left out.
    """
    products = torch.addmm(half_squares, queries, rows.T, alpha=-1)
    if places is not None:
        products.masked_fill_(places[:, None] == owners, torch.inf)
    return products.min(dim=1)


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


class _Found:
    """What has been found so far for each of some queries.

    A half square and the row it belongs to are one integer, of which the smallest can
    be kept in any order: the bits of a float that is not negative, read as an integer,
    grow with it.
    """

    def __init__(self, queries, places):
        self.n = len(queries)
        self.queries = F.pad(queries, (0, 0, 0, _N_FILLERS))
        if places is not None:
            places = F.pad(places, (0, _N_FILLERS), value=-1)
        self.places = places
        nothing = torch.full_like(self.queries[:, 0], torch.inf)
        self._keys = nothing.view(torch.int32).long() << 32

    def offer(self, queries, half_squares, rows):
        """Take what is nearer than what has been found before."""
        bits = half_squares.clamp_(min=0).view(torch.int32).long()
        keys = (bits << 32) | rows
        self._keys.scatter_reduce_(0, queries.flatten(), keys.flatten(), "amin")

    def half_squares(self):
        """Return half the squared distance of each query, infinite if there is none."""
        return (self._keys[: self.n] >> 32).int().view(torch.float32)

    def row(self):
        """Return the row found for each query."""
        return self._keys[: self.n] & _LOW_HALF
