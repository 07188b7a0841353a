"""Exact search on a GPU: by kernels, or by plain torch."""

import torch
import torch.nn.functional as F

from skpatchsvdd._bank.distances import Nearest, product_error
from skpatchsvdd._bank.fused import FusedSearch, load_kernels, move_rows, query_chunks
from skpatchsvdd._gpu import KernelWithFallback
from skpatchsvdd._utils import as_writable, expand, halve_squares

# Up to this many rows, a product with all of them takes no longer than sorting queries
# into clusters, by estimate.
_FEW_ROWS = 2**7
# Kernels count in 32 bits; half of what these hold leaves room for fillers.
_MOST_NUMBERS = 2**30
# Rows whose smallest product is found first: where that is too large, the others are
# not looked at.
_TILE_ROWS = 256
# Products held at a time: half a gigabyte.
_NUMBERS = 2**27


class GpuSearch:
    """Exact search on a GPU: `FusedSearch` where its kernels work, or `WholeSearch`.

    What is searched is given on the host.
    """

    def __init__(self, rows, centers, starts, owners, device):
        def make_fused():
            is_for_kernels = len(rows) > _FEW_ROWS and rows.numel() <= _MOST_NUMBERS
            if not is_for_kernels or load_kernels(device, rows.shape[1]) is None:
                return None
            moved = rows.to(device), centers.to(device)
            return FusedSearch(*moved, starts, owners).query

        def find_the_same(fast, plain):
            queries = move_rows(rows.to(device))[None]
            left_out = [-1], [int(owners[0])]
            pairs = [(fast(queries, x), plain(queries, x)) for x in left_out]
            return all(torch.allclose(x, y, rtol=1e-4, atol=0) for x, y in pairs)

        self.query = KernelWithFallback(
            "search",
            make_fused,
            lambda: WholeSearch(rows.to(device), owners).query,
            find_the_same,
        )

    @property
    def is_capturable(self):
        """Whether `query` waits for nothing on the GPU (no host synchronisation)."""
        return self.query.uses_kernels


class WholeSearch:
    """Compares each query with all rows, on their device.

    Distances are as exact as those of `ClusterSearch`: products of rows around their
    mean tell which rows may be the nearest, and differences decide.
    """

    def __init__(self, rows, owners):
        owners = torch.from_numpy(as_writable(owners)).to(rows.device)
        n_fillers = -len(rows) % _TILE_ROWS
        center = rows.mean(dim=0)
        self._rows = F.pad(_align(rows), (0, 0, 0, n_fillers))
        self._center = _align(center[None])[0]
        self._differences = self._rows - self._center
        half_squares = halve_squares(self._differences[: len(rows)])
        self._largest = 2 * half_squares.max()
        self._half_squares = F.pad(half_squares, (0, n_fillers), value=torch.inf)
        self._owners = F.pad(owners, (0, n_fillers))
        self._error = product_error(self._rows.shape[1])

    def query(self, features, left_out):
        """Return distances to the nearest rows; see `ClusterSearch.query`."""
        size = max(_NUMBERS // len(self._rows), 1)
        return query_chunks(self._query_chunk, features, left_out, size)

    def _query_chunk(self, queries, left_out):
        """Look at the row of the smallest product, then at all that may be nearer."""
        queries = _align(queries)
        found = Nearest(queries, self._rows)
        x = queries - self._center
        products = expand(self._half_squares, x, self._differences.T)
        if left_out is not None:
            products.masked_fill_(left_out[:, None] == self._owners, torch.inf)
        products = products.view(len(x), -1, _TILE_ROWS)
        smallest = products.amin(dim=2)
        query = torch.arange(len(x), device=x.device)
        tile = smallest.argmin(dim=1)
        row = products[query, tile].argmin(dim=1) + tile * _TILE_ROWS
        has_row = torch.isfinite(smallest[query, tile])
        found.offer(query[has_row], row[has_row])
        query_squares = halve_squares(x)
        errors = self._error * (2 * query_squares + self._largest)
        limits = found.limits(query, query_squares, errors)
        query, tile = (smallest < limits[:, None]).nonzero().unbind(dim=1)
        is_below = products[query, tile] < limits[query, None]
        pair, row = is_below.nonzero().unbind(dim=1)
        found.offer(query[pair], row + tile[pair] * _TILE_ROWS)
        return found.distances()


def _align(x):
    """Append columns of zeros up to a multiple of eight, as fast products need."""
    return F.pad(x, (0, -x.shape[1] % 8))
