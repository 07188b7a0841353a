"""Rows sorted into clusters, and bounds by which whole clusters can be skipped."""

import numpy as np
import torch

from skpatchsvdd._bank.distances import product_error
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
