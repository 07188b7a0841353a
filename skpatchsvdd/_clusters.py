"""Exact search that looks at few rows: clusters that cannot win are skipped."""

import numpy as np
import torch

from skpatchsvdd._nearest import Nearest, product_error

# Rows of a cluster, about, and clusters at most.
_CLUSTER_ROWS = 1024
_MAX_CLUSTERS = 512
# How the centres of the clusters are found.
_N_ROUNDS = 6
_SAMPLE_ROWS = 128  # for each cluster
_ASSIGNED = 4096  # rows at a time
# Products, pairs of a query and a cluster, and queries, held at a time.
_PRODUCTS = 2**19
_PAIRS = 2**13
_QUERIES = 2**13
# Added where errors are none, so that a number is below its sum with one.
_TINY = torch.finfo(torch.float32).tiny
# Nearest clusters tried one after the other for patches that have found nothing yet.
_N_TRIES = 4


class Clusters:
    """Rows sorted by the nearest of some centres.

    Attributes
    ----------
    centers : ndarray of shape (n_clusters, n_features)
        The centres.
    rows : ndarray of shape (n_rows, n_features)
        The rows as they were given, cluster by cluster.
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
        cluster = cluster[order].cpu().numpy()
        self.centers = centers.cpu().numpy()
        self.rows = x[order].cpu().numpy()
        self.starts = np.searchsorted(cluster, np.arange(n_clusters + 1))
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
    """Return the nearest centre of each row, up to rounding errors."""
    origin = centers.mean(dim=0)
    centers = centers - origin
    half_squares = centers.square().sum(dim=1) / 2
    # Not a transposed view: on ARM, torch would multiply with that far more slowly.
    columns = centers.T.contiguous()
    return torch.cat(
        [
            torch.addmm(half_squares, part - origin, columns, alpha=-1).argmin(dim=1)
            for part in x.split(_ASSIGNED)
        ]
    )


class ClusterBounds:
    """How near the rows of each cluster can be to a query, for certain.

    By the radius of the cluster around its centre, and because its rows lie beyond a
    plane, across the line from the centre nearest to the query. Squared distances to
    centres are expanded, around the mean of the centres; what rounding may have changed
    in them is allowed for.

    Parameters
    ----------
    rows, centers, starts : tensors and ndarray
        See `Clusters`.

    Attributes
    ----------
    half_squares : tensor of shape (n_rows,)
        Half the squared distance of each row to its centre.
    radii : tensor of shape (n_clusters,)
        Distances to the centre that no row of the cluster exceeds.
    """

    def __init__(self, rows, centers, starts):
        self._error = product_error(centers.shape[1])
        between = torch.cdist(
            centers, centers, compute_mode="donot_use_mm_for_euclid_dist"
        )
        self._between = between.clamp_(min=_TINY)
        self._margins = torch.full_like(between, torch.inf)
        self.radii = centers.new_zeros(len(centers))
        self.half_squares = rows.new_empty(len(rows))
        for cluster in np.flatnonzero(np.diff(starts)):
            part = slice(starts[cluster], starts[cluster + 1])
            self._measure(cluster, rows[part], centers, self.half_squares[part])
        self._origin = centers.mean(dim=0)
        centers = centers - self._origin
        self._columns = centers.T.contiguous()
        self._squares = centers.square().sum(dim=1)

    def _measure(self, cluster, rows, centers, half_squares):
        """Find the radius of a cluster, and how far other centres are from its rows.

        The margin is what half the squared distance to another centre has more than
        that to the own one, at least.
        """
        rows = rows - centers[cluster]
        torch.linalg.vecdot(rows, rows, out=half_squares)
        half_squares /= 2
        square = 2 * (1 + self._error) * half_squares.max()
        between = self._between[cluster].square()
        away = (centers[cluster] - centers).T.contiguous()
        smallest = torch.stack([(x @ away).amin(dim=0) for x in rows.split(_ASSIGNED)])
        errors = self._error * (between + square)
        self.radii[cluster] = square.sqrt()
        self._margins[:, cluster] = smallest.amin(dim=0) + between / 2 - errors

    def __call__(self, queries):
        """Compare queries with all clusters.

        Returns
        -------
        squares : tensor of shape (n_queries, n_clusters)
            Squared distances to the centres, about.
        bounds : tensor of shape (n_queries, n_clusters)
            Half squares that no row of the cluster falls below.
        """
        x = queries - self._origin
        own_squares = x.square().sum(dim=1, keepdim=True)
        squares = torch.addmm(self._squares, x, self._columns, alpha=-2) + own_squares
        low = squares - 2 * self._error * (self._squares + own_squares)
        nearest, own = squares.min(dim=1, keepdim=True)
        high = nearest + 2 * self._error * (
            self._squares[own[:, 0], None] + own_squares
        )
        own = own[:, 0]
        beyond = (low - high) / 2 + self._margins[own]  # the plane
        bounds = beyond.div_(self._between[own])
        torch.maximum(bounds, low.clamp_(min=0).sqrt_() - self.radii, out=bounds)
        return squares, bounds.clamp_(min=0).square_().mul_(0.5 - 2 * self._error)


class ClusterSearch:
    """Finds the nearest row of each query, exactly.

    A distance returned is that of a row, and at most (1 + 1e-5) times that of the
    nearest row, wherever the rows lie. (It is rounded as float32 sums are, too.)

    With a distance found already, a cluster is skipped if all of its rows must be
    farther away. In the others, rows are compared by expanded squares around the
    centre, and those that may be nearer, for all that rounding allows, by differences.

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
        self._bounds = ClusterBounds(rows, centers, starts)
        self._half_squares = self._bounds.half_squares
        self._error = product_error(rows.shape[1])

    def query(self, features, places):
        """Return the distance of each patch to the nearest row.

        Parameters
        ----------
        features : tensor of shape (n_images, n_patches, n_features)
            In the coordinates of the rows.
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
        skipped = _Skipped(self._owners, place, self._starts)
        parts = queries.split(_QUERIES)
        return torch.cat([self._query_some(part, skipped) for part in parts])

    def _query_some(self, queries, skipped):
        found = Nearest(queries, self._rows)
        untried, bounds = self._bounds(queries)
        for _ in range(_N_TRIES):
            pending = torch.isinf(found.half_squares).nonzero()[:, 0]
            if len(pending) == 0:
                break
            nearest = untried[pending].argmin(dim=1)
            self._visit_pairs(found, skipped, *_sort_pairs(nearest, pending))
            untried[pending, nearest] = torch.inf
            bounds[pending, nearest] = torch.inf
        clusters, rows = (found.half_squares > bounds.T).nonzero().unbind(dim=1)
        self._visit_pairs(found, skipped, clusters, rows)
        return found.distances()

    def _visit_pairs(self, found, skipped, clusters, queries):
        """Look at the rows of a cluster for some queries; clusters ascend."""
        parts = zip(clusters.split(_PAIRS), queries.split(_PAIRS), strict=True)
        for cluster, query in parts:
            x = found.queries[query] - self._centers[cluster]
            own = torch.linalg.vecdot(x, x) / 2
            errors = self._error * (2 * own + self._bounds.radii[cluster].square())
            errors.clamp_(min=_TINY)
            limits = found.limits(query, own, errors)
            # A transposed view instead of a copy is slow on ARM.
            columns = torch.cat([x.T, limits[None], 2 * errors[None]])
            near = [
                self._visit(number, columns[:, start:stop], start, skipped)
                for number, start, stop in self._split(cluster)
            ]
            if near:
                rows, pairs = map(np.concatenate, zip(*near, strict=True))
                found.offer(query[pairs], torch.from_numpy(rows))

    def _split(self, clusters):
        """Cut pairs into runs of one cluster each: its number, start and stop."""
        numbers, counts = clusters.unique_consecutive(return_counts=True)
        stop = 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            start, stop = stop, stop + count
            n_rows = self._starts[number + 1] - self._starts[number]
            size = max(_PRODUCTS // max(n_rows, 1), 1)
            for i in range(start, stop if n_rows else start, size):
                yield number, i, min(i + size, stop)

    def _visit(self, cluster, columns, first_pair, skipped):
        """Return pairs of a row and a query that may be nearer than what was found.

        In the columns are queries, less the centre, their limits and errors.
        """
        start, stop = self._starts[cluster], self._starts[cluster + 1]
        products = torch.addmm(
            self._half_squares[start:stop, None],
            self._rows[start:stop] - self._centers[cluster],
            columns[:-2],
            alpha=-1,
        )  # (n_rows, n_queries)
        left_out = skipped.within(cluster)
        if len(left_out):
            products[left_out] = torch.inf
        # What is larger by two errors than another one is not the nearest.
        limits = torch.minimum(products.amin(dim=0) + columns[-1], columns[-2])
        # numpy finds the few faster than torch.
        near = np.flatnonzero(products.numpy() < limits.numpy())
        rows, queries = np.divmod(near, len(limits))
        return rows + start, queries + first_pair


class _Skipped:
    """Rows that are left out, by cluster."""

    def __init__(self, owners, place, starts):
        self._rows = np.flatnonzero(owners == place) if place >= 0 else np.arange(0)
        self._ends = np.searchsorted(self._rows, starts)
        self._starts = starts

    def within(self, cluster):
        """Return the places of those rows in a cluster."""
        rows = self._rows[self._ends[cluster] : self._ends[cluster + 1]]
        return torch.from_numpy(rows - self._starts[cluster])


def _sort_pairs(clusters, queries):
    order = clusters.argsort(stable=True)
    return clusters[order], queries[order]
