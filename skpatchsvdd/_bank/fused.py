"""Exact search on a GPU in four kernels, with half precision where that is certain."""

import importlib
import math

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._bank.clusters import ClusterBounds, place_in_tiles
from skpatchsvdd._bank.distances import product_error
from skpatchsvdd._bank.exact_gpu import WholeSearch, query_parts
from skpatchsvdd._utils import runs_kernels, warn_of_kernels

# Features of more numbers do not fit into registers.
_MOST_FEATURES = 132
# Kernels count in 32 bits; half of what these hold leaves room for fillers.
_MOST_NUMBERS = 2**30
# Columns besides a power of two: a position has two.
_MOST_MORE = 4
# Queries and rows of one product, and rows that are decided together.
_QUERIES, _ROWS, _PART = 64, 64, 32
# Clusters that are compared with a block of queries at a time.
_CHUNK = 64
# Programs that share all products: a few for each of a large GPU's multiprocessors.
_PROGRAMS = 1024
# Rows that a search is tried on, and by how much of a deviation they are moved.
_N_TRIED, _NOISE = 512, 0.03
# Queries held at a time.
_MOST_QUERIES = 2**17
# Features around their centres are scaled to at most this: half precision goes up to
# 65,504, so that queries may lie 14 times as far away as any row.
_LARGEST = 2.0**12
# Half squares, up to half the square of that, are divided by this and cut into so many
# numbers of half precision that nothing is lost.
_FACTOR, _N_PIECES = 2.0**8, 3
# These and those of half squares, filled up to what one product takes.
_MORE = 16


def load_kernels(device, n_features):
    """Return the module of kernels, or None where it is of no use."""
    if n_features > _MOST_FEATURES or not runs_kernels(device):
        return None
    return importlib.import_module("skpatchsvdd._bank.kernels")


def make_fused(rows, centers, starts, owners):
    """Make a `FusedSearch` and try it; return None if it is not there or not right.

    What is right is left to no compiler: a few rows, moved a little, are compared with
    all rows as well.
    """
    is_too_large = rows.numel() > _MOST_NUMBERS
    if is_too_large or load_kernels(rows.device, rows.shape[1]) is None:
        return None
    parts = rows, centers, starts, owners
    try:
        search, is_right = _try_search(*parts)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # as where a GPU has less memory on its chip
        warn_of_kernels("search", f"fails ({type(error).__name__}: {error})")
        return None
    if not is_right:
        warn_of_kernels("search", "does not find what the plain one finds")
    return search if is_right else None


def _try_search(rows, centers, starts, owners):
    """Make a `FusedSearch`, and say whether it finds what the plain search finds."""
    search = FusedSearch(rows, centers, starts, owners)
    generator = torch.Generator(rows.device).manual_seed(0)
    every = max(len(rows) // _N_TRIED, 1)
    tried = rows[::every]
    noise = torch.randn(tried.shape, generator=generator, device=rows.device)
    tried = (tried + _NOISE * rows.std() * noise)[None]
    expected = WholeSearch(rows, centers, starts, owners).query(tried, [-1])
    found = search.query(tried, [-1])
    return search, torch.allclose(found, expected, rtol=1e-4, atol=0)


class FusedSearch:
    r"""Finds the nearest row of each query, skipping clusters as on a CPU.

    Distances are as exact as those of `ClusterSearch`. Queries and rows are compared
    around the centre of a cluster, in half precision on the GPU's matrix units. With
    :math:`\epsilon = 2^{-11}`, the rounding of a number, the product of two vectors is
    wrong by at most

    .. math:: (2 \epsilon + \epsilon^2) \|x\| \|y\|
        \le (\epsilon + \epsilon^2 / 2) (\|x\|^2 + \|y\|^2)

    for the roundings of x and y. To this comes what adding up in float32 takes. For
    all rows of a cluster y is taken to be as long as the longest one. A part of the
    rows is noted if one of them may be nearer than another row is for certain, and what
    is noted is decided by differences in float32.

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
        self._kernels = load_kernels(rows.device, rows.shape[1])
        self._columns = split_columns(rows.shape[1])
        rows, centers = self._widen(rows), self._widen(centers)
        self._bounds = ClusterBounds(rows, centers, starts)
        slot, n_tiles = place_in_tiles(starts, _ROWS)
        self._slot = torch.from_numpy(slot).to(rows.device)
        self._size = int(n_tiles.sum()) * _ROWS
        # A power of two, so that scaling rounds nothing.
        largest = max(float(self._bounds.radii.max()), 1e-12)
        self._scale = 2.0 ** math.floor(math.log2(_LARGEST / largest))
        error = 1.005 * 2.0**-11 + 2 * product_error(rows.shape[1])
        # Numbers below the least that half precision knows are wrong by as much as
        # 2**-25 each, which the half per cent above leaves room for but for this.
        # So may the last piece of half a square be, times its factor.
        self._errors = error, rows.shape[1] * 2.0**-32 + 2.0**-17
        cluster = torch.arange(len(centers), device=rows.device)
        n_rows = torch.from_numpy(np.diff(starts)).to(rows.device)
        cluster = cluster.repeat_interleave(n_rows)
        differences = (rows - centers[cluster]) * self._scale
        owners = torch.from_numpy(owners.astype(np.int32)).to(rows.device)
        first_tiles = np.concatenate([[0], np.cumsum(n_tiles)]).astype(np.int32)
        self._rows = self._spread(rows * self._scale, 0.0)
        self._owners = self._spread(owners, -2)
        half_squares = self._bounds.half_squares * self._scale**2
        pieces = self._spread(_cut(half_squares), 0.0)
        pieces[self._owners < 0, 0] = torch.inf  # fillers are far from everything
        more = self._spread(differences[:, self._columns[0] :].half(), 0.0)
        more = F.pad(torch.cat([more, pieces], dim=1), (0, _MORE))[:, :_MORE]
        self._bank = (
            self._spread(differences[:, : self._columns[0]].half(), 0.0),
            more.contiguous(),
            self._owners,
            centers * self._scale,
            (self._bounds.radii * self._scale).square() / 2,
            torch.from_numpy(first_tiles).to(rows.device),
        )

    def _spread(self, x, filler):
        """Return what belongs to rows, where they go."""
        spread = x.new_full((self._size, *x.shape[1:]), filler)
        return spread.index_copy_(0, self._slot, x)

    def query(self, features, left_out):
        """Return the distance of each patch to the nearest row.

        Parameters and return value are those of `ClusterSearch.query`.
        """
        return query_parts(self._query_some, features, left_out, _MOST_QUERIES)

    def _query_some(self, queries, left_out):
        queries = self._widen(queries)
        squares, own_squares = self._bounds.squares(queries)
        nearest, order = squares.argmin(dim=1).to(torch.int32).sort()
        x = queries[order] * self._scale
        out = None if left_out is None else left_out[order].to(torch.int32)
        sorted_squares = self._look(x, order, nearest, out, squares, own_squares[order])
        half_squares = torch.empty_like(sorted_squares)
        half_squares.index_copy_(0, order, sorted_squares)
        return (2 * half_squares).sqrt()

    def _look(self, x, order, nearest, left_out, squares, own_squares):
        """Return half the squared distances of sorted queries."""
        n, n_clusters = squares.shape
        shape = {"K": self._columns[0], "L": self._columns[1]}
        shape["LEAVES"] = left_out is not None
        more = {"X": _MORE, "FACTOR": _FACTOR}
        if left_out is None:
            left_out = nearest.new_full((n,), -1)
        blocks = {"Q": _QUERIES, "R": _ROWS}
        n_blocks = -(-n // _QUERIES)
        upper = x.new_empty(n)
        self._kernels.look_first[(n_blocks,)](
            x,
            nearest,
            left_out,
            self._bank,
            upper,
            n,
            *self._errors,
            **shape,
            **more,
            **blocks,
        )
        pairs = nearest.new_empty(n_blocks * n_clusters)
        n_pairs = nearest.new_zeros(1)
        self._kernels.find_due[(n_blocks, -(-n_clusters // _CHUNK))](
            squares,
            order,
            nearest,
            own_squares,
            upper,
            self._bounds.geometry(),
            pairs,
            n_pairs,
            n,
            n_clusters,
            self._scale**2,
            self._bounds.error,
            Q=_QUERIES,
            C=_CHUNK,
        )
        noted = nearest.new_zeros(n, n_clusters)
        self._kernels.look_further[(_PROGRAMS,)](
            x,
            left_out,
            self._bank,
            pairs,
            n_pairs,
            upper,
            noted,
            n,
            n_clusters,
            *self._errors,
            **shape,
            **more,
            **blocks,
            PART=_PART,
        )
        half_squares = torch.empty_like(upper)
        self._kernels.decide[(n,)](
            x,
            left_out,
            self._rows,
            self._owners,
            self._bank[-1],
            noted,
            half_squares,
            n_clusters,
            self._scale**2,
            **shape,
            R=_ROWS,
            PART=_PART,
            C=max(2 ** math.ceil(math.log2(n_clusters)), 16),
            num_warps=1,
        )
        return half_squares

    def _widen(self, x):
        """Append columns of zeros, as many as products need."""
        return F.pad(x, (0, sum(self._columns) - x.shape[1]))


def _cut(half_squares):
    """Cut numbers, divided by a factor, into sums of numbers of half precision."""
    rest, pieces = half_squares / _FACTOR, []
    for _ in range(_N_PIECES):
        pieces.append(rest.half())
        rest = rest - pieces[-1]
    return torch.stack(pieces, dim=1)


def split_columns(n_features):
    """Split columns into a power of two from 16 on, and a few more or none."""
    first = max(2 ** int(math.log2(n_features)), 16)
    if n_features - first > _MOST_MORE:
        first *= 2
    return first, max(n_features - first, 0)
