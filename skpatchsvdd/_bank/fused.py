"""Exact search on a GPU in three kernels, with half precision where that is certain."""

import importlib
import math

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._bank.clusters import ClusterBounds, product_error, query_chunks

# Columns besides a power of two: a position has two.
_MOST_MORE = 4
# Queries and rows of one product, and rows that are decided together.
_QUERIES, _ROWS, _PART = 64, 64, 32
# Programs that share all products: a few for each of a large GPU's multiprocessors.
_PROGRAMS = 1024
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
# What the kernels that multiply know when they are compiled.
_PRODUCT = {"Q": _QUERIES, "R": _ROWS, "X": _MORE, "FACTOR": _FACTOR}


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
    """

    is_capturable = True  # waits for nothing on the GPU (no host synchronisation)

    def __init__(self, rows, centers, starts, owners):
        # Triton comes with torch for the GPUs that it is for.
        self._kernels = importlib.import_module("skpatchsvdd._bank.kernels")
        self._columns = _split_columns(rows.shape[1])
        rows, centers = self._widen(rows), self._widen(centers)
        self._bounds = ClusterBounds(rows, centers, starts)
        slot, n_tiles = _place_in_tiles(starts)
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
        owners = torch.from_numpy(owners.astype(np.int32)).to(rows.device)
        self._rows = self._spread(rows * self._scale, 0.0)
        self._owners = self._spread(owners, -2)
        first_tiles = np.concatenate([[0], np.cumsum(n_tiles)]).astype(np.int32)
        self._bank = (
            *self._split_rows(rows, centers, starts),
            self._owners,
            centers * self._scale,
            (self._bounds.radii * self._scale).square() / 2,
            torch.from_numpy(first_tiles).to(rows.device),
        )

    def _split_rows(self, rows, centers, starts):
        """Return rows around their centres, and more columns; see `_multiply`."""
        cluster = torch.arange(len(centers), device=rows.device)
        n_rows = torch.from_numpy(np.diff(starts)).to(rows.device)
        cluster = cluster.repeat_interleave(n_rows)
        differences = (rows - centers[cluster]) * self._scale
        pieces = self._spread(_cut(self._bounds.half_squares * self._scale**2), 0.0)
        pieces[self._owners < 0, 0] = torch.inf  # fillers are far from everything
        first, more = differences.half().tensor_split([self._columns[0]], dim=1)
        more = torch.cat([self._spread(more, 0.0), pieces], dim=1)
        more = F.pad(more, (0, _MORE))[:, :_MORE].contiguous()
        return self._spread(first, 0.0), more

    def _spread(self, x, filler):
        """Return what belongs to rows, where they go."""
        spread = x.new_full((self._size, *x.shape[1:]), filler)
        return spread.index_copy_(0, self._slot, x)

    def query(self, features, left_out):
        """Return distances to the nearest rows; see `ClusterSearch.query`."""
        return query_chunks(self._query_chunk, features, left_out, _MOST_QUERIES)

    def _query_chunk(self, queries, left_out):
        queries = self._widen(queries)
        squares, bounds = self._bounds(queries)
        nearest, order = squares.argmin(dim=1).to(torch.int32).sort()
        x = queries[order] * self._scale
        leaves = left_out is not None
        shape = {"K": self._columns[0], "L": self._columns[1], "LEAVES": leaves}
        if leaves:
            left_out = left_out[order].to(torch.int32)
        else:
            left_out = nearest.new_full((len(x),), -1)
        upper = self._look_first(x, nearest, left_out, shape)
        due = self._find_due(bounds[order], upper)
        noted = self._look_further(x, left_out, due, upper, shape)
        sorted_squares = self._decide(x, left_out, noted, shape)
        half_squares = torch.empty_like(sorted_squares)
        half_squares.index_copy_(0, order, sorted_squares)
        return (2 * half_squares).sqrt()

    def _look_first(self, x, nearest, left_out, shape):
        """Return upper bounds of half squares, by the nearest clusters, (n,)."""
        upper = x.new_empty(len(x))
        args = (x, nearest, left_out, self._bank, upper, len(x), *self._errors)
        self._kernels.look_first[(_count_blocks(x),)](*args, **shape, **_PRODUCT)
        return upper

    def _find_due(self, bounds, upper):
        """Return the pairs of blocks and clusters to look at, and how many they are."""
        is_due = bounds.mul_(self._scale**2) <= upper[:, None]
        is_due = F.pad(is_due, (0, 0, 0, -len(is_due) % _QUERIES))
        is_due = is_due.view(-1, _QUERIES, is_due.shape[1]).any(dim=1).flatten()
        # Sorted, since asking how many there are would wait for the GPU.
        pairs = is_due.byte().argsort(descending=True, stable=True)
        return pairs.to(torch.int32), is_due.sum(dtype=torch.int32)[None]

    def _look_further(self, x, left_out, due, upper, shape):
        """Return the parts of clusters to decide, as bits, (n, n_clusters)."""
        n_clusters = len(self._bounds.radii)
        noted = left_out.new_zeros(len(x), n_clusters)
        args = (x, left_out, self._bank, *due, upper, noted, len(x), n_clusters)
        self._kernels.look_further[(_PROGRAMS,)](
            *args, *self._errors, **shape, **_PRODUCT, PART=_PART
        )
        return noted

    def _decide(self, x, left_out, noted, shape):
        """Return half the squares of the nearest rows in what is noted, (n,)."""
        n, n_clusters = noted.shape
        half_squares = x.new_empty(n)
        args = (x, left_out, self._rows, self._owners, self._bank[-1], noted)
        args = (*args, half_squares, n_clusters, self._scale**2)
        padded = max(2 ** math.ceil(math.log2(n_clusters)), 16)
        self._kernels.decide[(n,)](
            *args, **shape, R=_ROWS, PART=_PART, C=padded, num_warps=1
        )
        return half_squares

    def _widen(self, x):
        """Append columns of zeros, as many as products need."""
        return F.pad(x, (0, sum(self._columns) - x.shape[1]))


def _place_in_tiles(starts):
    """Say where rows go when every cluster is padded to whole tiles.

    Returns the place of each row, and how many tiles each cluster has.
    """
    n_rows = np.diff(starts)
    n_tiles = -(-n_rows // _ROWS)
    shift = np.concatenate([[0], np.cumsum(n_tiles * _ROWS - n_rows)[:-1]])
    return np.arange(starts[-1]) + shift.repeat(n_rows), n_tiles


def _count_blocks(queries):
    return -(-len(queries) // _QUERIES)


def _cut(half_squares):
    """Cut numbers, divided by a factor, into sums of numbers of half precision."""
    rest, pieces = half_squares / _FACTOR, []
    for _ in range(_N_PIECES):
        pieces.append(rest.half())
        rest = rest - pieces[-1]
    return torch.stack(pieces, dim=1)


def _split_columns(n_features):
    """Split columns into a power of two from 16 on, and a few more or none."""
    first = max(2 ** int(math.log2(n_features)), 16)
    if n_features - first > _MOST_MORE:
        first *= 2
    return first, max(n_features - first, 0)
