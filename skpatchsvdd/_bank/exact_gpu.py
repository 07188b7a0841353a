"""Exact search on a GPU: by kernels, or by plain torch."""

import importlib.util

import torch
import torch.nn.functional as F

from skpatchsvdd._bank.clusters import Nearest, product_error, query_chunks
from skpatchsvdd._bank.fused import FusedSearch
from skpatchsvdd._utils import as_writable, expand, halve_squares, warn

# Up to this many rows, a product with all of them takes no longer than sorting queries
# into clusters, by estimate.
_FEW_ROWS = 2**7
# Kernels count in 32 bits; half of what these hold leaves room for fillers.
_MOST_NUMBERS = 2**30
# Features of more numbers do not fit into the registers of kernels.
_MOST_FEATURES = 132
# Rows that kernels are tried on, and by how much of a deviation they are moved.
_N_TRIED, _NOISE = 512, 0.03
# Rows whose smallest product is found first: where that is too large, the others are
# not looked at.
_TILE_ROWS = 256
# Products held at a time: half a gigabyte.
_NUMBERS = 2**27


def make_gpu_search(rows, centers, starts, owners, device):
    """Return a `FusedSearch` where its kernels are right, or else a `WholeSearch`.

    No compiler is trusted: kernels are compared with plain torch on some rows of the
    bank, on the device they are for. What is searched is given on the host.
    """
    rows = rows.to(device)
    plain = WholeSearch(rows, owners)
    if not _suits_kernels(rows):
        return plain
    try:
        fast = FusedSearch(rows, centers.to(device), starts, owners)
        if _find_the_same(fast, plain, rows, owners):
            return fast
        reason = "does not find what the plain one finds"
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler and its surroundings raise
        reason = f"fails ({type(error).__name__}: {error})"
    warn(
        f"the fast search on this GPU {reason}. Continuing with a slower one. It takes "
        "triton, which comes with torch, and a C compiler, gcc or clang; another "
        "version of torch or triton may help."
    )
    return plain


def _suits_kernels(rows):
    has_triton = importlib.util.find_spec("triton") is not None
    is_small = rows.numel() <= _MOST_NUMBERS and rows.shape[1] <= _MOST_FEATURES
    return rows.is_cuda and has_triton and is_small and len(rows) > _FEW_ROWS


def _find_the_same(fast, plain, rows, owners):
    """Whether two searches find the same for some rows of the bank, moved a little."""
    tried = rows[:: max(len(rows) // _N_TRIED, 1)]
    generator = torch.Generator(rows.device).manual_seed(0)
    noise = torch.randn(tried.shape, generator=generator, device=rows.device)
    queries = (tried + _NOISE * rows.std() * noise)[None]
    left_out = [-1], [int(owners[0])]
    pairs = [(fast.query(queries, x), plain.query(queries, x)) for x in left_out]
    return all(torch.allclose(x, y, rtol=1e-4, atol=0) for x, y in pairs)


class WholeSearch:
    """Compares each query with all rows, on their device.

    Distances are as exact as those of `ClusterSearch`: products of rows around their
    mean tell which rows may be the nearest, and differences decide.
    """

    is_capturable = False

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
