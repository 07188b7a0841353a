"""Kernels of `FusedSearch`, in Triton. All half squares are those of scaled features.

Features are K numbers, a power of two, and L more, a few. Letters in capitals are known
when a kernel is compiled.
"""

import triton
import triton.language as tl

# Larger than any half square, and what none reaches.
_NO_ROW = tl.constexpr(1e30)
_ANY_ROW = tl.constexpr(1e29)
# What numbers of half the usual length can hold, about.
_LARGEST = tl.constexpr(60000.0)


@triton.jit
def _approach(
    queries, q, is_query, centers, cluster,
    K: tl.constexpr, L: tl.constexpr, X: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """Move queries to a centre; return K and X columns, and half their squares.

    The columns are in half precision; for the last ones see `_multiply`. Half squares
    are infinite where that is too short for a query.
    """
    column = tl.arange(0, K)
    place = q[:, None] * (K + L) + column[None, :]
    x = tl.load(queries + place, mask=is_query[:, None], other=0.0)
    x -= tl.load(centers + cluster * (K + L) + column)[None, :]
    column = tl.arange(0, X)
    place = q[:, None] * (K + L) + K + column[None, :]
    is_there = is_query[:, None] & (column < L)[None, :]
    more = tl.load(queries + place, mask=is_there, other=0.0)
    place = centers + cluster * (K + L) + K + column
    more -= tl.load(place, mask=column < L, other=0.0)[None, :]
    q_half = 0.5 * (tl.sum(x * x, axis=1) + tl.sum(more * more, axis=1))
    largest = tl.maximum(tl.max(tl.abs(x), axis=1), tl.max(tl.abs(more), axis=1))
    q_half = tl.where(largest > _LARGEST, float("inf"), q_half)
    x = tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST)
    more = tl.minimum(tl.maximum(more, -_LARGEST), _LARGEST)
    more = tl.where((column < L)[None, :], more, -FACTOR)
    return x.to(tl.float16), more.to(tl.float16), q_half


@triton.jit
def _multiply(
    x, more, bank, row, left_out, K: tl.constexpr, X: tl.constexpr, LEAVES: tl.constexpr
):  # fmt: skip
    """Return products with rows, less half the squares of these, (Q, R).

    The last columns of a row are half its square, in pieces, divided by the factor that
    queries have there.
    """
    rows, more_columns, owners, _, _, _ = bank
    y = tl.load(rows + row[None, :] * K + tl.arange(0, K)[:, None])
    other = tl.load(more_columns + row[None, :] * X + tl.arange(0, X)[:, None])
    products = tl.dot(more, other)
    products = tl.dot(x, y, products)
    if LEAVES:
        is_left_out = tl.load(owners + row)[None, :] == left_out[:, None]
        products = tl.where(is_left_out, -_NO_ROW, products)
    return products


@triton.jit(do_not_specialize=["n"])
def look_first(
    queries, nearest, left_out, bank, upper, n, error, tiny,
    K: tl.constexpr, L: tl.constexpr, X: tl.constexpr, FACTOR: tl.constexpr,
    Q: tl.constexpr, R: tl.constexpr, LEAVES: tl.constexpr,
):  # fmt: skip
    """Bound half squares from above, by the clusters whose centres are nearest."""
    _, _, _, centers, tops, first_tiles = bank
    start = tl.program_id(0) * Q
    q = start + tl.arange(0, Q)
    is_query = q < n
    out = tl.load(left_out + q, mask=is_query, other=-1)
    best = tl.full((Q,), _NO_ROW, dtype=tl.float32)
    last = tl.load(nearest + tl.minimum(start + Q, n) - 1)
    for cluster in range(tl.load(nearest + start), last + 1):
        x, more, q_half = _approach(
            queries, q, is_query, centers, cluster, K, L, X, FACTOR
        )
        largest = tl.full((Q, R), -_NO_ROW, dtype=tl.float32)
        end = tl.load(first_tiles + cluster + 1)
        for tile in range(tl.load(first_tiles + cluster), end):
            row = tile * R + tl.arange(0, R)
            products = _multiply(x, more, bank, row, out, K, X, LEAVES)
            largest = tl.maximum(largest, products)
        over = q_half + 2 * error * (q_half + tl.load(tops + cluster)) + tiny
        best = tl.minimum(best, over - tl.max(largest, axis=1))
    tl.store(upper + q, best, mask=is_query)


@triton.jit
def _join_bits(first, second):
    return first | second


@triton.jit(do_not_specialize=["n"])
def look_further(
    queries, left_out, bank, pairs, n_pairs, upper, noted, n, n_clusters, error, tiny,
    K: tl.constexpr, L: tl.constexpr, X: tl.constexpr, FACTOR: tl.constexpr,
    Q: tl.constexpr, R: tl.constexpr, PART: tl.constexpr, LEAVES: tl.constexpr,
):  # fmt: skip
    """Note the parts of clusters that may hold the nearest row.

    A cluster has up to 32 parts, each a bit of a number, of as many times `PART` rows
    as it takes.
    """
    _, _, _, centers, tops, first_tiles = bank
    part = tl.arange(0, R // PART)
    for i in range(tl.program_id(0), tl.load(n_pairs), tl.num_programs(0)):
        pair = tl.load(pairs + i)
        cluster = pair % n_clusters
        q = (pair // n_clusters) * Q + tl.arange(0, Q)
        is_query = q < n
        out = tl.load(left_out + q, mask=is_query, other=-1)
        best = tl.load(upper + q, mask=is_query, other=-1.0)
        x, more, q_half = _approach(
            queries, q, is_query, centers, cluster, K, L, X, FACTOR
        )
        away = 2 * error * (q_half + tl.load(tops + cluster)) + tiny
        # Of queries that half precision is too short for, all parts are noted.
        under = tl.where(q_half < float("inf"), q_half - away, -_NO_ROW)
        under = tl.where(is_query, under, _NO_ROW)
        bits = tl.zeros((Q,), dtype=tl.int32)
        first = tl.load(first_tiles + cluster)
        end = tl.load(first_tiles + cluster + 1)
        n_each = ((end - first) * (R // PART) + 31) // 32
        for tile in range(first, end):
            row = tile * R + tl.arange(0, R)
            products = _multiply(x, more, bank, row, out, K, X, LEAVES)
            largest = tl.max(tl.reshape(products, (Q, R // PART, PART)), axis=2)
            is_near = (largest >= (under - best)[:, None]) & (largest > -_ANY_ROW)
            bit = ((tile - first) * (R // PART) + part) // n_each
            is_near = is_near.to(tl.int32) << bit[None, :]
            bits = bits | tl.reduce(is_near, 1, _join_bits)
            best = tl.minimum(best, q_half + away - tl.max(largest, axis=1))
        tl.atomic_min(upper + q, best, mask=is_query)
        tl.store(noted + q * n_clusters + cluster, bits, mask=is_query)


@triton.jit
def decide(
    queries, left_out, rows, owners, first_tiles, noted, half_squares, n_clusters,
    scale, K: tl.constexpr, L: tl.constexpr, R: tl.constexpr, PART: tl.constexpr,
    C: tl.constexpr, LEAVES: tl.constexpr,
):  # fmt: skip
    """Find half the square of the nearest row, from differences."""
    q = tl.program_id(0)
    column = tl.arange(0, K)
    x = tl.load(queries + q * (K + L) + column)
    out = tl.load(left_out + q)
    index = tl.arange(0, C)
    words = tl.load(noted + q * n_clusters + index, mask=index < n_clusters, other=0)
    best = float("inf")
    while (tl.max((words != 0).to(tl.int32), axis=0) > 0) & (best > 0):
        cluster = tl.argmax((words != 0).to(tl.int32), axis=0)
        bits = tl.sum(tl.where(index == cluster, words, 0), axis=0)
        words = tl.where(index == cluster, 0, words)
        first = tl.load(first_tiles + cluster)
        n_parts = (tl.load(first_tiles + cluster + 1) - first) * (R // PART)
        n_each = (n_parts + 31) // 32
        for number in range(n_parts):
            if (bits >> (number // n_each)) & 1 != 0:
                row = first * R + number * PART + tl.arange(0, PART)
                is_row = tl.load(owners + row) >= 0
                if LEAVES:
                    is_row = is_row & (tl.load(owners + row) != out)
                place = row * (K + L)
                y = tl.load(rows + place[:, None] + column[None, :])
                half = tl.sum((x[None, :] - y) * (x[None, :] - y), axis=1)
                for i in tl.static_range(L):
                    away = tl.load(queries + q * (K + L) + K + i)
                    away -= tl.load(rows + place + K + i)
                    half += away * away
                half = tl.where(is_row, half, float("inf"))
                best = tl.minimum(best, 0.5 * tl.min(half, axis=0))
    tl.store(half_squares + q, best / scale)
