"""Rows sorted into clusters, and bounds by which whole clusters can be skipped."""

import numpy as np
import torch

from skpatchsvdd._bank.distances import TINY, product_error
from skpatchsvdd._utils import as_columns, expand, halve_squares

# Rows of a cluster, about, and clusters at most: smaller ones are skipped more often,
# but each query is compared with every centre.
_CLUSTER_ROWS, _MAX_CLUSTERS = 1024, 512
# How the centres are found, by k-means on a sample: clusters decide how fast a search
# is, not what it finds, so that a few rounds will do.
_N_ROUNDS = 6
_SAMPLE_ROWS = 128  # for each cluster
_ASSIGNED = 4096  # rows at a time


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


def place_in_tiles(starts, n_each):
    """Say where rows go when every cluster is padded to whole tiles of `n_each` rows.

    Returns the place of each row, and how many tiles each cluster has.
    """
    n_rows = np.diff(starts)
    n_tiles = -(-n_rows // n_each)
    shift = np.concatenate([[0], np.cumsum(n_tiles * n_each - n_rows)[:-1]])
    return np.arange(starts[-1]) + shift.repeat(n_rows), n_tiles


class ClusterBounds:
    """How near the rows of each cluster can be to a query, for certain.

    By the radius of the cluster around its centre, and because its rows lie beyond a
    plane, across the line from the centre nearest to the query. Squared distances to
    centres are expanded, around the mean of the centres; what rounding may have changed
    in them is allowed for.

    `half_squares` of rows are those of their distances to the centre; `radii` are
    distances that no row of a cluster exceeds.
    """

    def __init__(self, rows, centers, starts):
        self.error = product_error(centers.shape[1])
        between = torch.cdist(
            centers, centers, compute_mode="donot_use_mm_for_euclid_dist"
        )
        self._between = between.clamp_(min=TINY)
        self._margins = torch.full_like(between, torch.inf)
        self.radii = centers.new_zeros(len(centers))
        self.half_squares = rows.new_empty(len(rows))
        for cluster in np.flatnonzero(np.diff(starts)):
            part = slice(starts[cluster], starts[cluster + 1])
            self._measure(cluster, rows[part], centers, self.half_squares[part])
        self._origin = centers.mean(dim=0)
        centers = centers - self._origin
        self._columns = as_columns(centers)
        self._half_squares = halve_squares(centers)

    def _measure(self, cluster, rows, centers, half_squares):
        """Find the radius of a cluster, and how far other centres are from its rows.

        The margin is a lower bound of half the squared distance of its rows to another
        centre, less that to its own.
        """
        rows = rows - centers[cluster]
        torch.linalg.vecdot(rows, rows, out=half_squares)
        half_squares /= 2
        square = 2 * (1 + self.error) * half_squares.max()
        between = self._between[cluster].square()
        away = (centers[cluster] - centers).T.contiguous()
        smallest = torch.stack([(x @ away).amin(dim=0) for x in rows.split(_ASSIGNED)])
        errors = self.error * (between + square)
        self.radii[cluster] = square.sqrt()
        self._margins[:, cluster] = smallest.amin(dim=0) + between / 2 - errors

    def squares(self, queries):
        """Return squared distances to the centres, about, and to their mean."""
        x = queries - self._origin
        query_squares = x.square().sum(dim=1)
        squares = 2 * expand(self._half_squares, x, self._columns)
        return squares.add_(query_squares[:, None]), query_squares

    def geometry(self):
        """Return margins, distances between centres, radii and squares of centres."""
        return self._margins, self._between, self.radii, 2 * self._half_squares

    def __call__(self, queries):
        """Compare queries with all clusters; both results are (n_queries, n_clusters).

        Squared distances to the centres, about, and half squares that no row of the
        cluster falls below.
        """
        squares, query_squares = self.squares(queries)
        center_squares = 2 * self._half_squares
        low = squares - 2 * self.error * (center_squares + query_squares[:, None])
        smallest, nearest = squares.min(dim=1)
        high = smallest + 2 * self.error * (center_squares[nearest] + query_squares)
        beyond = (low - high[:, None]) / 2 + self._margins[nearest]  # the plane
        bounds = beyond.div_(self._between[nearest])
        torch.maximum(bounds, low.clamp_(min=0).sqrt_() - self.radii, out=bounds)
        return squares, bounds.clamp_(min=0).square_().mul_(0.5 - 2 * self.error)
