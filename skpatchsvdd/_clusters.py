"""Exact search that looks at few rows: clusters that cannot win are skipped."""

import numpy as np
import torch

# Rows of a cluster, about, and clusters at most.
_CLUSTER_ROWS = 1024
_MAX_CLUSTERS = 512
# How the centres of the clusters are found.
_N_ROUNDS = 6
_SAMPLE_ROWS = 128  # for each cluster
_ASSIGNED = 4096  # rows at a time
# Share of the typical radius by which bounds are lowered, for rounding errors.
_SLACK = 1e-3
# Products, and queries, held at a time.
_PRODUCTS = 2**21
_QUERIES = 2**13
# Nearest clusters tried one after the other for patches that have found nothing yet.
_N_TRIES = 4


class Clusters:
    """Rows sorted by the nearest of some centres.

    Attributes
    ----------
    centers : ndarray of shape (n_clusters, n_features)
        The centres.
    rows : ndarray of shape (n_rows, n_features)
        The rows, cluster by cluster, less their centre: the differences are small, and
        expanded squares of them keep their digits.
    starts : ndarray of shape (n_clusters + 1,)
        Where each cluster begins, and the end of the last one.
    order : ndarray of shape (n_rows,)
        Where each row was before.
    """

    def __init__(self, rows, seed, device="cpu"):
        x = torch.from_numpy(np.require(rows, requirements="W")).to(device)
        n_clusters = min(max(len(x) // _CLUSTER_ROWS, 1), _MAX_CLUSTERS)
        generator = torch.Generator().manual_seed(seed)
        centers = find_centers(x, n_clusters, generator)
        cluster = _assign(x, centers)
        order = cluster.argsort(stable=True)
        cluster = cluster[order]
        self.centers = centers.cpu().numpy()
        self.rows = x[order].sub_(centers[cluster]).cpu().numpy()
        self.starts = np.searchsorted(cluster.cpu().numpy(), np.arange(n_clusters + 1))
        self.order = order.cpu().numpy()


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
    """Return the nearest centre of each row."""
    half_squares = centers.square().sum(dim=1) / 2
    return torch.cat(
        [
            torch.addmm(half_squares, part, centers.T, alpha=-1).argmin(dim=1)
            for part in x.split(_ASSIGNED)
        ]
    )


class ClusterBounds:
    """How near the rows of each cluster can be to a query.

    By the radius of the cluster around its centre, and because its rows are nearer to
    that centre than to the one nearest to the query.

    Parameters
    ----------
    centers : tensor of shape (n_clusters, n_features)
        The centres.
    half_squares : tensor of shape (n_rows,)
        Half the squared distance of each row to its centre.
    starts : ndarray of shape (n_clusters + 1,)
        Where each cluster begins, and the end of the last one.
    """

    def __init__(self, centers, half_squares, starts):
        self._centers = centers
        self._squares = centers.square().sum(dim=1)
        cluster = np.arange(len(centers)).repeat(np.diff(starts))
        cluster = torch.from_numpy(cluster).to(centers.device)
        largest = torch.zeros_like(self._squares)
        largest.scatter_reduce_(0, cluster, half_squares, "amax")
        self._radii = (2 * largest).sqrt()
        self._slack = _SLACK * float(self._radii.mean())
        self._between = torch.cdist(
            centers, centers, compute_mode="donot_use_mm_for_euclid_dist"
        )

    def __call__(self, queries):
        """Compare queries with all clusters.

        Returns
        -------
        squares : tensor of shape (n_queries, n_clusters)
            Squared distances to the centres.
        bounds : tensor of shape (n_queries, n_clusters)
            Half squares that no row of the cluster can fall below.
        """
        squares = torch.addmm(self._squares, queries, self._centers.T, alpha=-2)
        squares += queries.square().sum(dim=1, keepdim=True)
        squares.clamp_(min=0)
        nearest, own = squares.min(dim=1, keepdim=True)
        between = self._between[own[:, 0]].clamp_(min=1e-12)
        bounds = torch.maximum(
            squares.sqrt() - self._radii, (squares - nearest) / (2 * between)
        )
        return squares, (bounds - self._slack).clamp_(min=0).square_() / 2


class ClusterSearch:
    """Finds the nearest row of each query, exactly.

    With a distance found already, a cluster is skipped if all of its rows must be
    farther away.

    Parameters
    ----------
    rows, centers, starts : tensors and ndarray
        See `Clusters`.
    owners : ndarray of shape (n_rows,)
        Which image each row is from.
    """

    def __init__(self, rows, centers, starts, owners):
        self._rows = rows
        self._centers = centers
        self._starts = starts.tolist()
        self._owners = owners
        self._half_squares = torch.cat(
            [part.square().sum(dim=1) / 2 for part in rows.split(2**16)]
        )
        self._bounds = ClusterBounds(centers, self._half_squares, starts)

    def query(self, features, places):
        """Return the distance of each patch to the nearest row.

        Parameters
        ----------
        features : tensor of shape (n_images, n_patches, n_features)
            In the coordinates of the centres.
        places : list of int of length n_images
            For each image, the image whose rows are left out, or -1.

        Returns
        -------
        distances : tensor of shape (n_images, n_patches)
        """
        # Image by image, so that no other image matters.
        pairs = zip(features, places, strict=True)
        return torch.stack([self._query_image(*pair) for pair in pairs])

    def _query_image(self, queries, place):
        skipped = np.flatnonzero(self._owners == place) if place >= 0 else None
        parts = queries.split(_QUERIES)
        return torch.cat([self._query_some(part, skipped) for part in parts])

    def _query_some(self, queries, skipped):
        found = _Found(queries, skipped, self._starts)
        squares, bounds = self._bounds(queries)
        untried = squares
        for _ in range(_N_TRIES):
            pending = found.pending()
            if len(pending) == 0:
                break
            nearest = untried[pending].argmin(dim=1)
            self._visit_pairs(found, *_sort_pairs(nearest, pending))
            untried[pending, nearest] = torch.inf
            bounds[pending, nearest] = torch.inf
        clusters, rows = (found.half_squares > bounds.T).nonzero().unbind(dim=1)
        self._visit_pairs(found, clusters, rows)
        # The difference, which has all its digits, of the nearest row alone.
        nearest = queries - self._centers[found.cluster]
        distances = (nearest - self._rows[found.row]).norm(dim=1)
        return torch.where(found.row >= 0, distances, torch.inf)

    def _visit_pairs(self, found, clusters, rows):
        """Look at the rows of a cluster for some queries; clusters ascend."""
        numbers, counts = clusters.unique_consecutive(return_counts=True)
        parts = rows.split(counts.tolist())
        for number, part in zip(numbers.tolist(), parts, strict=True):
            n_rows = self._starts[number + 1] - self._starts[number]
            if n_rows > 0:
                for some in part.split(max(_PRODUCTS // n_rows, 1)):
                    self._visit(found, number, some)

    def _visit(self, found, cluster, queries):
        start, stop = self._starts[cluster], self._starts[cluster + 1]
        x = found.queries[queries] - self._centers[cluster]
        products = torch.addmm(
            self._half_squares[start:stop], x, self._rows[start:stop].T, alpha=-1
        )
        skipped = found.skipped_in(cluster)
        if len(skipped):
            products[:, skipped] = torch.inf
        smallest, row = products.min(dim=1)
        found.offer(queries, smallest + x.square().sum(dim=1) / 2, row + start, cluster)


class _Found:
    """What has been found so far for each of some queries."""

    def __init__(self, queries, skipped, starts):
        n = len(queries)
        self.queries = queries
        self.half_squares = torch.full((n,), torch.inf)  # of the distances
        self.row = torch.full((n,), -1)
        self.cluster = torch.zeros(n, dtype=torch.long)
        self._skipped, self._starts = skipped, starts
        if skipped is not None:
            self._ends = np.searchsorted(skipped, starts)

    def pending(self):
        """Return the queries for which nothing has been found."""
        return torch.isinf(self.half_squares).nonzero()[:, 0]

    def skipped_in(self, cluster):
        """Places of the rows of a cluster that are left out."""
        if self._skipped is None:
            return ()
        rows = self._skipped[self._ends[cluster] : self._ends[cluster + 1]]
        return torch.from_numpy(rows - self._starts[cluster])

    def offer(self, queries, half_squares, row, cluster):
        """Take what is nearer than what has been found before."""
        before = self.half_squares[queries]
        nearer = half_squares < before
        self.half_squares[queries] = torch.where(nearer, half_squares, before)
        self.row[queries] = torch.where(nearer, row, self.row[queries])
        self.cluster[queries[nearer]] = cluster


def _sort_pairs(clusters, queries):
    order = clusters.argsort(stable=True)
    return clusters[order], queries[order]
