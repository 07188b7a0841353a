"""Rows in clusters, and what is certain of distances in spite of rounding."""

import itertools

import numpy as np
import torch

from skpatchsvdd._utils import as_columns, expand, halve_squares, halve_without_memory

# Rows of a cluster, about, and clusters at most: smaller ones are skipped more often,
# but each query is compared with every centre.
_CLUSTER_ROWS, _MAX_CLUSTERS = 1024, 512
# How the centres are found, by k-means on a sample: clusters decide how fast a search
# is, not what it finds, so that a few rounds will do.
_N_ROUNDS = 6
_SAMPLE_ROWS = 128  # for each cluster
_ASSIGNED = 4096  # rows at a time
# A row that is nearer by less than this fraction of the distance may be missed: far
# below what a score is read to, and above the rounding of a float32 sum.
_TOLERANCE = 1e-5
# Numbers of differences held at a time: on a CPU as many as stay in a core's cache.
_CPU_NUMBERS, _GPU_NUMBERS = 2**17, 2**24
# Added where errors are none, so that a number is below its sum with one.
TINY = torch.finfo(torch.float32).tiny
# Axes of a cluster that are kept, and rounds of orthogonal iteration in which they are
# found: of a thousand rows they leave a few. They decide how fast a search is, not what
# it finds.
_N_AXES, _N_AXIS_ROUNDS = 20, 2
# The least that points are divided by, and how far from right angles axes may be.
_LEAST, _NOT_RIGHT = 1e-30, 1e-12
# Rounding of a float64 sum, for each of its terms, and more.
_ERROR = 2.0**-50


class Clusters:
    """Rows, float32, sorted by their nearest centre, in clusters of about `n_each`.

    The rows of `is_counted`, all if it is None, decide how many clusters there are, and
    where.
    """

    def __init__(self, rows, seed, device="cpu", n_each=None, is_counted=None):
        x = torch.from_numpy(np.require(rows, requirements="W")).to(device)
        counted = x
        if is_counted is not None:
            counted = x[torch.from_numpy(is_counted).to(device)]
        n_clusters = len(counted) // (n_each or _CLUSTER_ROWS)
        n_clusters = min(max(n_clusters, 1), _MAX_CLUSTERS)
        generator = torch.Generator().manual_seed(seed)
        centers = find_centers(counted, n_clusters, generator)
        cluster = _assign(x, centers)
        order = cluster.argsort(stable=True)
        cluster = cluster[order].cpu().numpy()
        self.centers = centers.cpu().numpy()  # (n_clusters, n_features)
        self.rows = x[order].cpu().numpy()  # (n_rows, n_features)
        # Where each cluster begins, and the end of the last one.
        self.starts = np.searchsorted(cluster, np.arange(n_clusters + 1))
        self.order = order.cpu().numpy()  # where each row was before


def find_centers(x, n_clusters, generator):
    """Find the centres of clusters by k-means on a sample."""
    chosen = torch.randperm(len(x), generator=generator)[: n_clusters * _SAMPLE_ROWS]
    x = x[chosen.to(x.device)]
    centers = x[:n_clusters].clone()
    for _ in range(_N_ROUNDS):
        cluster = _assign(x, centers)
        sums = torch.zeros_like(centers).index_add_(0, cluster, x)
        counts = torch.bincount(cluster, minlength=n_clusters)[:, None]
        centers = torch.where(counts > 0, sums / counts.clamp(min=1), centers)
    return centers


def _assign(x, centers):
    """Return the nearest centre of each row, up to rounding errors."""
    origin = centers.mean(dim=0)
    centers = centers - origin
    half_squares, columns = halve_squares(centers), as_columns(centers)
    return torch.cat(
        [
            expand(half_squares, part - origin, columns).argmin(dim=1)
            for part in x.split(_ASSIGNED)
        ]
    )


class ClusterBounds:
    """How near the rows of each cluster can be to a query, for certain.

    By the radius of the cluster around its centre. Squared distances to centres are
    expanded, around the mean of the centres; what rounding may have changed in them is
    allowed for.

    `half_squares` of rows are those of their distances to the centre; `radii` are
    distances that no row of a cluster exceeds.
    """

    def __init__(self, rows, centers, starts):
        self.error = product_error(centers.shape[1])
        self.radii = centers.new_zeros(len(centers))
        self.half_squares = rows.new_empty(len(rows))
        for cluster in np.flatnonzero(np.diff(starts)):
            part = slice(starts[cluster], starts[cluster + 1])
            half_squares = halve_squares(rows[part] - centers[cluster])
            self.half_squares[part] = half_squares
            square = 2 * (1 + self.error) * half_squares.max()
            self.radii[cluster] = square.sqrt()
        self._origin = centers.mean(dim=0)
        centers = centers - self._origin
        self._columns = as_columns(centers)
        self._half_squares = halve_squares(centers)

    def __call__(self, queries):
        """Compare queries with all clusters; both results are (n_queries, n_clusters).

        Squared distances to the centres, about, and half squares that no row of the
        cluster falls below.
        """
        x = queries - self._origin
        own = halve_squares(x)[:, None]
        half_squares = expand(self._half_squares, x, self._columns).add_(own)
        low = half_squares - 2 * self.error * (self._half_squares + own)
        bounds = (2 * low).clamp_(min=0).sqrt_().sub_(self.radii).clamp_(min=0)
        return 2 * half_squares, bounds.square_().mul_(0.5 - 2 * self.error)


class Sketches:
    r"""Rows and queries along the main axes of a cluster, and how long the rest is.

    With x a query and y a row of a cluster, both less its centre, orthogonal axes V of
    the cluster, and :math:`\bar x`, :math:`\bar y` what these leave of x and y,

    .. math:: \tfrac12 \| x - y \|^2 - \tfrac12 \| x \|^2
        \ge \tfrac12 \| y \|^2 - V^T x \cdot V^T y - \| \bar x \| \| \bar y \|

    by Cauchy and Schwarz's inequality. The right side is a product of few columns. They
    are computed in float64, so that only rounding them, and the product, adds errors:
    a product is too large by at most `error` times :math:`\| x \|^2 + \| y \|^2`.
    """

    def __init__(self, rows, centers, starts):
        n_axes = min(_N_AXES, rows.shape[1])
        self.error = product_error(n_axes + 2)
        self._centers = centers.double()
        self._axes, self._columns = [], []
        spans = itertools.pairwise(starts.tolist())
        for center, (start, stop) in zip(self._centers, spans, strict=True):
            y = rows[start:stop].double() - center
            axes = _find_axes(y.float(), n_axes)
            half_squares = halve_squares(y)
            short = _shorten(y @ axes, half_squares, len(center))
            columns = torch.cat([-short.T, half_squares[None]])
            self._axes.append(axes.numpy())
            self._columns.append(columns.float().numpy())

    def shorten(self, queries, clusters, runs):
        """Sketch queries, (n, n_features), for the cluster of each, ascending.

        `runs` are each cluster's number, where it starts there and where it stops.
        Returns what `multiply` wants, and half the squared distance of each query to
        its centre, float64.
        """
        x = queries.double().sub_(self._centers.index_select(0, clusters))
        half_squares = torch.linalg.vecdot(x, x) / 2
        # numpy: a call of torch's takes longer than so small a product.
        y = x.numpy()
        leading = np.empty((len(y), self._axes[0].shape[1]))
        for i, start, stop in runs:
            np.matmul(y[start:stop], self._axes[i], out=leading[start:stop])
        leading = torch.from_numpy(leading)
        short = _shorten(leading, half_squares, x.shape[1])
        short = torch.cat([short, torch.ones_like(short[:, :1])], dim=1)
        return short.float().numpy(), half_squares

    def multiply(self, short, cluster):
        """Compare sketches with all rows of a cluster, (n, n_rows)."""
        return short @ self._columns[cluster]


def _shorten(leading, half_squares, n_features):
    """Append to coordinates how long the rest is, or what it is at most."""
    rest = (half_squares - halve_squares(leading)).clamp_(min=0)
    rest += n_features * _ERROR * half_squares
    return torch.cat([leading, (2 * rest).sqrt_()[:, None]], dim=1)


def _find_axes(y, n_axes):
    """Find orthogonal axes along which points spread most, about, as columns.

    Some libraries answer NaN where numbers are next to nothing, as those of points that
    are all but the same: points are scaled, and what is not orthogonal is not used.
    """
    y = y / y.abs().max().clamp(min=_LEAST)
    start = y[:: max(len(y) // n_axes, 1)][:n_axes]
    axes = y.new_zeros(y.shape[1], n_axes)
    axes[:, : len(start)] = start.T
    for _ in range(_N_AXIS_ROUNDS):
        axes = y.T @ (y @ torch.linalg.qr(axes).Q)
    axes = torch.linalg.qr(axes.double()).Q
    unit = torch.eye(*axes.shape, dtype=axes.dtype)
    is_right = torch.allclose(axes.T @ axes, unit[:n_axes], rtol=0, atol=_NOT_RIGHT)
    return axes if is_right else unit


def product_error(n_features):
    """Bound the rounding error of an expanded half square, |x|^2/2 + |y|^2/2 - xy.

    As a factor of ``|x|^2 + |y|^2``: each of the sums of products is wrong by at most
    `n_features` roundings in whichever order it is taken. A few more are for x and y,
    which are rounded differences, and for adding up.
    """
    return (n_features + 16) * 2.0**-24


class Nearest:
    """Distances to the nearest rows found so far: always those of rows.

    They come from differences, which have all their digits. Expanded squares only tell
    which rows to look at. `half_squares` of distances are infinite as long as there are
    none.
    """

    def __init__(self, queries, rows):
        self.queries, self._rows = queries, rows
        self.half_squares = torch.full_like(queries[:, 0], torch.inf)
        is_cpu = queries.device.type == "cpu"
        numbers = _CPU_NUMBERS if is_cpu else _GPU_NUMBERS
        self._n_pairs = max(numbers // queries.shape[1], 1)

    def offer(self, queries, rows):
        """Look at pairs of a query and a row, given by their indices."""
        parts = zip(*(x.split(self._n_pairs) for x in (queries, rows)), strict=True)
        for i, (query, row) in enumerate(parts):
            if i > 0:  # Copies of a row would make for pairs without end.
                is_open = self.half_squares[query] > 0
                query, row = query[is_open], row[is_open]
                if len(query) == 0:
                    continue
            difference = self.queries.index_select(0, query)
            difference -= self._rows.index_select(0, row)
            half_squares = torch.linalg.vecdot(difference, difference) / 2
            self.half_squares.scatter_reduce_(0, query, half_squares, "amin")

    def limits(self, queries, query_squares, errors):
        """Return what products must fall below for their rows to be looked at.

        `queries` are indices, `query_squares` half their squares, which products leave
        out, and `errors` a bound of the rounding error of the sum of both.
        """
        nearer = self.half_squares[queries] * (1 - 2 * _TOLERANCE)
        # A distance of zero cannot improve.
        return torch.where(nearer > 0, nearer - query_squares + errors, -torch.inf)

    def distances(self):
        """Return the distances found, (n_queries,)."""
        return (2 * self.half_squares).sqrt()


def query_chunks(query, features, left_out, size):
    """Query the patches of images in chunks, smaller ones where memory runs out.

    ``query(queries, left_out)`` returns distances, (n,), of queries (n, n_features)
    without the rows of an owner for each, (n,); None where all rows count. The rest is
    that of `ClusterSearch.query`; chunks have `size` queries.
    """
    queries = features.flatten(0, 1)
    owners = None
    if max(left_out) >= 0:
        owners = torch.tensor(left_out, device=queries.device)
        owners = owners.repeat_interleave(features.shape[1])

    def search(size):
        starts = range(0, len(queries), size)
        chunks = [None if owners is None else owners[i : i + size] for i in starts]
        pairs = zip(queries.split(size), chunks, strict=True)
        return torch.cat([query(*pair) for pair in pairs])

    return halve_without_memory(search, size).view(features.shape[:2])
