"""Regression by a narrow Gaussian kernel, on all rows or clusters that matter."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._bank.clusters import ClusterBounds, Clusters
from skpatchsvdd._bank.distances import product_error
from skpatchsvdd._utils import as_columns, expand, halve_squares

# Products held at a time: on a CPU as many as stay in the cache of a core.
_CPU_PRODUCTS, _GPU_PRODUCTS = 2**18, 2**27
# Exponents are no less than this beside the largest: what has them weighs nothing, and
# smaller results would be denormal, which take a CPU many times as long.
_LEAST = -60.0
# Rows of a cluster, about, and rows and queries from which on clusters pay.
_CLUSTER_ROWS = 128
_FEWEST_ROWS, _FEWEST_QUERIES = 1024, 1024
# Weight that all rows skipped have together, as a fraction of that of the nearest row
# and in the worst case: far below the rounding of the products.
_SKIPPED = 1e-6
# A query that has more than this fraction of the rows left is compared with all.
_MANY = 0.5
# Weights of a query are 1 or more in all, if there are any.
_TINY = 0.5
# Queries held at a time, and rows that are tried as queries.
_QUERIES, _N_TRIED = 2**13, 64


class KernelModel(NamedTuple):
    """What the regression needs, on a device, in units of the kernel's width."""

    origin: torch.Tensor
    columns: torch.Tensor
    half_squares: torch.Tensor
    distances: torch.Tensor
    owners: torch.Tensor
    typical: float
    clusters: "ClusterRegression | None" = None

    def leave_out(self, owner):
        """Return the model without the rows of an owner, unless there are no others."""
        is_left_out = self.owners == owner
        if is_left_out.all():
            return self
        # They are infinitely far away.
        half_squares = self.half_squares.masked_fill(is_left_out, torch.inf)
        return self._replace(half_squares=half_squares)


def regress_images(model, features, left_out):
    """Return what is usual for the patches of images, by plain torch.

    Parameters
    ----------
    model : KernelModel
        On the device of the features.
    features : tensor of shape (n_images, n_patches, n_features)
        Features.
    left_out : list of int of length n_images
        For each image, the owner whose rows are left out, or -1.

    Returns
    -------
    means : tensor of shape (n_images, n_patches)
    """
    if features.device.type != "cpu" and max(left_out) < 0:
        return regress(model, features.flatten(0, 1)).view(features.shape[:2])
    # Image by image, so that no other image matters.
    pairs = zip(features, left_out, strict=True)
    return torch.stack([_regress_image(model, *pair) for pair in pairs])


def _regress_image(model, features, owner):
    if owner >= 0:
        model = model.leave_out(owner)
    return (model.clusters or regress)(model, features)


def regress(model, features, n_products=None):
    """Return the mean of distances, weighted by the kernel, comparing with all rows.

    As many products are held at a time as suit the device, or `n_products`.
    """
    is_cpu = features.device.type == "cpu"
    products = n_products or (_CPU_PRODUCTS if is_cpu else _GPU_PRODUCTS)
    usual = []
    for chunk in features.split(max(products // len(model.distances), 1)):
        near = expand(model.half_squares, chunk - model.origin, model.columns).neg_()
        near.clamp_(min=near.amax(dim=1, keepdim=True) + _LEAST)
        usual.append(torch.softmax(near, dim=1) @ model.distances)
    return torch.cat(usual)


def make_cluster_regression(rows, width):
    """Return a `ClusterRegression`, or None where it would not be faster.

    So it is with few rows, and where the kernel is wide beside the clusters, or rows
    vary alike in all directions, as noise does.
    """
    if len(rows) < _FEWEST_ROWS:
        return None
    found = ClusterRegression(rows, width)
    return None if found.measure_vagueness() > _MANY else found


class ClusterRegression:
    r"""Does what `regress` does, without the clusters whose rows weigh nothing.

    A row weighs :math:`\exp(-(h - h_0))` as much as the nearest one, with h and
    :math:`h_0` half their squared distances in units of the kernel's width. A cluster
    is skipped if all of its rows must have :math:`h - h_0 > \log(n / 10^{-6})`: of n
    rows those that are skipped weigh less than a millionth of the nearest one, together
    and wherever they lie. Rounding is allowed for.

    Parameters
    ----------
    rows : tensor of shape (n_rows, n_features)
        The rows, less their origin, on a CPU.
    width : float
        Variance of the kernel.
    """

    def __init__(self, rows, width):
        clusters = Clusters(rows.numpy(), seed=0, n_each=_CLUSTER_ROWS)
        has_rows = np.diff(clusters.starts) > 0
        starts = clusters.starts[np.append(has_rows, True)]
        self._order = torch.from_numpy(clusters.order)
        self._spans = list(itertools.pairwise(starts.tolist()))
        self._n_rows = np.diff(starts).astype(np.float32)
        self._rows = torch.from_numpy(clusters.rows)
        centers = torch.from_numpy(clusters.centers[has_rows])
        self._bounds = ClusterBounds(self._rows, centers, starts)
        self._columns = [
            as_columns(self._rows[slice(*span)]) / width for span in self._spans
        ]
        self._largest = 2 * float(halve_squares(rows).max())
        self._width = width
        self._reach = math.log(len(rows) / _SKIPPED)

    def measure_vagueness(self):
        """Return the fraction of rows that are left for the rows themselves.

        As if the nearest other one were as far away as the width of the kernel says.
        """
        tried = self._rows[:: -(-len(self._rows) // _N_TRIED)]
        _, bounds = self._bounds(tried)
        is_open = (bounds < self._width * self._reach).numpy()
        return float((is_open @ self._n_rows).mean()) / len(self._rows)

    def __call__(self, model, features):
        """Return the weighted mean of distances; see `regress`.

        Parameters
        ----------
        model : KernelModel
            Of the same rows. Some may be left out.
        features : tensor of shape (n, n_features)
            Patches of one image.

        Returns
        -------
        means : tensor of shape (n,)
        """
        if len(features) < _FEWEST_QUERIES:
            return regress(model, features)
        clusters = self._split(model)
        chunks = features.split(_QUERIES)
        return torch.cat([self._regress_chunk(model, clusters, x) for x in chunks])

    def _split(self, model):
        """Return for each cluster what `_weigh` needs of it."""
        minus, distances = -model.half_squares[self._order], model.distances
        values = torch.stack([torch.ones_like(distances), distances], dim=1)
        values = values[self._order]
        return [
            (minus[start:stop], columns, values[start:stop])
            for (start, stop), columns in zip(self._spans, self._columns, strict=True)
        ]

    def _regress_chunk(self, model, clusters, features):
        x = features - model.origin
        # numpy finds the smallest, and the few, faster than torch.
        squares, bounds = (y.numpy() for y in self._bounds(x))
        sums = _Sums(len(x), bounds.dtype)
        nearest = squares.argmin(axis=1)
        order = nearest.argsort(kind="stable")
        self._weigh(sums, clusters, x, nearest[order], order)
        is_open = bounds < self._limit(x, sums.highest)[:, None]
        is_open[np.arange(len(x)), nearest] = False
        is_vague = is_open @ self._n_rows > _MANY * len(self._rows)
        is_open[is_vague] = False
        self._weigh(sums, clusters, x, *is_open.T.nonzero())
        means = torch.from_numpy(sums.means())
        if is_vague.any():
            is_vague = torch.from_numpy(is_vague)
            means[is_vague] = regress(model, features[is_vague])
        return means

    def _limit(self, x, highest):
        """Return the half squares from which on rows weigh nothing, (n,)."""
        half_squares = halve_squares(x).numpy()
        errors = product_error(x.shape[1]) * (2 * half_squares + self._largest)
        away = half_squares - self._width * highest
        return away + self._width * self._reach + 2 * errors

    @torch.inference_mode()
    def _weigh(self, sums, clusters, x, numbers, queries):
        """Add the weights of clusters' rows for queries; the numbers ascend."""
        lowest = sums.highest[queries] - self._reach
        places = torch.from_numpy(queries)
        for number, run in self._cut_runs(numbers):
            minus, columns, values = clusters[number]
            products = torch.addmm(minus, x.index_select(0, places[run]), columns)
            highest = products.numpy().max(axis=1)
            kept = (highest > lowest[run]).nonzero()[0]
            if len(kept) == 0:
                continue
            if len(kept) < len(highest):
                products = products.index_select(0, torch.from_numpy(kept))
                highest = highest[kept]
            products.sub_(torch.from_numpy(highest)[:, None]).clamp_(min=_LEAST)
            weights = products.exp_()
            sums.add(queries[run][kept], highest, (weights @ values).numpy())

    def _cut_runs(self, numbers):
        """Yield clusters and where their queries are, not too many at a time."""
        found, starts = np.unique(numbers, return_index=True)
        spans = itertools.pairwise([*starts.tolist(), len(numbers)])
        for number, (start, stop) in zip(found.tolist(), spans, strict=True):
            size = max(_CPU_PRODUCTS // int(self._n_rows[number]), 1)
            for i in range(start, stop, size):
                yield number, slice(i, min(i + size, stop))


class _Sums:
    """Sums of weights of clusters, for queries.

    Attributes
    ----------
    highest : ndarray of shape (n_queries,)
        Logarithms of the largest weights so far.
    """

    def __init__(self, n_queries, dtype):
        self.highest = np.full(n_queries, -np.inf, dtype=dtype)
        self._added = []

    def add(self, queries, highest, sums):
        """Add a cluster for queries, each of which is there once.

        Parameters
        ----------
        queries : ndarray of int of shape (n,)
            The queries.
        highest : ndarray of shape (n,)
            Logarithm of the largest weight.
        sums : ndarray of shape (n, 2)
            Sums of weights and of weighted distances, in units of the largest weight.
        """
        self.highest[queries] = np.maximum(self.highest[queries], highest)
        self._added.append((queries, highest, sums))

    def means(self):
        """Return the weighted means of distances, (n_queries,), or 0 without any."""
        queries, highest, sums = (
            np.concatenate(x) for x in zip(*self._added, strict=True)
        )
        factors = np.exp(highest - self.highest[queries])
        weights, weighted = (
            np.bincount(queries, factors * x, minlength=len(self.highest))
            for x in sums.T
        )
        means = weighted / np.maximum(weights, _TINY)
        return means.astype(self.highest.dtype)
