"""Exact search on a GPU, in few large calls."""

import torch
import torch.nn.functional as F

from skpatchsvdd._bank.clusters import ClusterBounds, place_in_tiles
from skpatchsvdd._bank.distances import Nearest, expand, product_error
from skpatchsvdd._utils import as_writable, halve_without_memory

# Rows of a cluster, and queries that look at them, of one small matrix product: large
# enough to be fast, small enough that few are fillers.
_TILE_ROWS = 256
_TILE_QUERIES = 64
# Queries that do not count, to fill up tiles with.
_N_FILLERS = 64
# Queries, and products and copied numbers, held at a time: half a gigabyte.
_QUERIES = 2**16
_NUMBERS = 2**27
# Fraction of the rows from which on a query is faster compared with all of them.
_MANY = 0.3


class WholeSearch:
    """Compares each query with all rows: the fastest way where they are few.

    Distances are as exact as those of `ClusterSearch`. Parameters are those of
    `TileSearch`.
    """

    def __init__(self, rows, centers, starts, owners):
        owners = torch.from_numpy(as_writable(owners)).to(rows.device)
        n_more = -len(rows) % _TILE_ROWS
        is_row = F.pad(torch.ones_like(owners, dtype=torch.bool), (0, n_more))
        self._rows = F.pad(_align(rows), (0, 0, 0, n_more))
        self._all = _AllRows(self._rows, is_row, F.pad(owners, (0, n_more)))

    def query(self, features, left_out):
        """Return the distance of each patch to the nearest row.

        Parameters and return value are those of `ClusterSearch.query`.
        """
        size = max(_NUMBERS // len(self._rows), 1)
        return query_parts(self._query_some, features, left_out, size)

    def _query_some(self, queries, left_out):
        found = Nearest(queries, self._rows)
        chosen = torch.arange(len(queries), device=queries.device)
        self._all.look(found, chosen, left_out)
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
        The owner, image or group, of each row.
    """

    def __init__(self, rows, centers, starts, owners):
        rows, centers = _align(rows), _align(centers)
        slot, n_tiles = place_in_tiles(starts, _TILE_ROWS)
        slot = torch.from_numpy(slot).to(rows.device)
        size = int(n_tiles.sum()) * _TILE_ROWS
        self._bounds = ClusterBounds(rows, centers, starts)
        self._rows = rows.new_zeros(size, rows.shape[1]).index_copy_(0, slot, rows)
        self._half_squares = rows.new_full((size,), torch.inf)
        self._half_squares.index_copy_(0, slot, self._bounds.half_squares)
        owners = torch.from_numpy(as_writable(owners)).to(slot)
        self._owners = slot.new_full((size,), -2).index_copy_(0, slot, owners)
        self._n_tiles = torch.from_numpy(n_tiles).to(rows.device)
        self._first_tile = self._n_tiles.cumsum(0) - self._n_tiles
        cluster = torch.arange(len(centers), device=rows.device)
        cluster = cluster.repeat_interleave(self._n_tiles * _TILE_ROWS)
        self._differences = self._rows - centers[cluster]
        self._error = product_error(rows.shape[1])
        self._centers = centers
        self._all = None

    def query(self, features, left_out):
        """Return the distance of each patch to the nearest row.

        Parameters and return value are those of `ClusterSearch.query`.
        """
        return query_parts(self._query_some, features, left_out, _QUERIES)

    def _query_some(self, queries, left_out):
        squares, bounds = self._bounds(queries)
        found = _Found(queries, left_out, self._rows)
        nearest = squares.argmin(dim=1, keepdim=True)
        due = torch.zeros_like(bounds, dtype=torch.bool).scatter_(1, nearest, True)
        self._visit(found, due, is_first=True)
        half_squares = found.half_squares[: found.n]
        due = bounds.scatter_(1, nearest, torch.inf) < half_squares[:, None]
        n_tiles = due.float() @ self._n_tiles.float()
        many = n_tiles > _MANY * self._n_tiles.sum()
        far = (many | torch.isinf(half_squares)).nonzero()[:, 0]
        due[far] = False
        self._visit(found, due)
        if len(far):
            self._look_at_all(found, far)
        return found.distances()[: found.n]

    def _visit(self, found, due, is_first=False):
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
            self._offer(found, parts[some], tiles, clusters, is_first)

    def _look_at_all(self, found, chosen):
        """Look at all rows, for some of the queries."""
        if self._all is None:
            is_row = torch.isfinite(self._half_squares)
            self._all = _AllRows(self._rows, is_row, self._owners)
        for some in chosen.split(max(_NUMBERS // len(self._rows), 1)):
            left_out = None if found.left_out is None else found.left_out[some]
            self._all.look(found, some, left_out)

    def _offer(self, found, queries, tile, cluster, is_first):
        """Offer the rows of tiles that may be nearer than what has been found.

        The nearest row of each tile is offered before the others if `is_first`, when
        nothing has been found that they could be compared with.
        """
        products, own = self._multiply(found, queries, tile, cluster)
        if is_first:
            smallest, row = products.min(dim=2)
            counts = torch.isfinite(smallest) & (queries < found.n)
            row += tile[:, None] * _TILE_ROWS
            found.offer(queries[counts], row[counts])
        else:
            smallest = products.amin(dim=2)
        radii = self._bounds.radii[cluster][:, None]
        errors = self._error * (2 * own + radii.square())
        limits = found.limits(queries, own, errors)
        pair, query, row = _find_below(products, smallest, limits)
        found.offer(queries[pair, query], row + tile[pair] * _TILE_ROWS)

    def _multiply(self, found, queries, tile, cluster):
        """Return the products of tiles, and half the squares of the queries."""
        rows, half_squares, owners = (
            x.view(-1, _TILE_ROWS, *x.shape[1:])[tile]
            for x in (self._differences, self._half_squares, self._owners)
        )
        x = found.queries[queries] - self._centers[cluster][:, None]
        products = torch.baddbmm(half_squares[:, None], x, rows.mT, alpha=-1)
        if found.left_out is not None:
            same = found.left_out[queries][:, :, None] == owners[:, None]
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
        The owner, image or group, of each row.
    """

    def __init__(self, rows, is_row, owners):
        self._center = rows[is_row].mean(dim=0)
        self._differences = rows - self._center
        squares = self._differences.square().sum(dim=1)
        self._largest = squares[is_row].max()
        self._half_squares = torch.where(is_row, squares / 2, torch.inf)
        self._owners = owners
        self._error = product_error(rows.shape[1])

    def look(self, found, queries, left_out):
        """Offer the row of the smallest product, then all that may be nearer.

        Parameters
        ----------
        found : Nearest
            What has been found before, of these rows.
        queries : tensor of int of shape (n,)
            Indices of some queries.
        left_out : tensor of shape (n,) or None
            For each of them, the image whose rows are left out.
        """
        x = found.queries[queries] - self._center
        products = expand(self._half_squares, x, self._differences.T)
        if left_out is not None:
            products.masked_fill_(left_out[:, None] == self._owners, torch.inf)
        products = products.view(len(x), -1, _TILE_ROWS)
        smallest = products.amin(dim=2)
        tile = smallest.argmin(dim=1)
        each = torch.arange(len(x), device=x.device)
        row = products[each, tile].argmin(dim=1) + tile * _TILE_ROWS
        has_row = torch.isfinite(smallest[each, tile])
        found.offer(queries[has_row], row[has_row])
        own = x.square().sum(dim=1) / 2
        errors = self._error * (2 * own + self._largest)
        limits = found.limits(queries, own, errors)[:, None].expand_as(smallest)
        query, tile, row = _find_below(products, smallest, limits)
        found.offer(queries[query], row + tile * _TILE_ROWS)


def _find_below(products, smallest, limits):
    """Find the products (n, m, n_rows) below limits (n, m), which few are.

    Where the smallest is not, the others are not looked at.
    """
    i, j = (smallest < limits).nonzero().unbind(dim=1)
    k, row = (products[i, j] < limits[i, j][:, None]).nonzero().unbind(dim=1)
    return i[k], j[k], row


def query_parts(query, features, left_out, size):
    """Query the patches of some images in parts that fit into memory."""
    queries = _align(features.flatten(0, 1))
    out = None
    if max(left_out) >= 0:
        out = torch.tensor(left_out, device=queries.device)
        out = out.repeat_interleave(features.shape[1])

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
    """What has been found so far for each of some queries, and for some fillers."""

    def __init__(self, queries, left_out, rows):
        super().__init__(F.pad(queries, (0, 0, 0, _N_FILLERS)), rows)
        self.n = len(queries)
        self.half_squares[self.n :] = 0  # fillers need nothing
        if left_out is not None:
            left_out = F.pad(left_out, (0, _N_FILLERS), value=-1)
        self.left_out = left_out
