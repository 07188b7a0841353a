"""Short rows that tell for certain how near the full ones can be."""

import itertools

import numpy as np
import torch

from skpatchsvdd._bank.distances import product_error
from skpatchsvdd._utils import halve_squares

# Axes of a cluster that are kept, and rounds of orthogonal iteration in which they are
# found: of a thousand rows they leave a few. They decide how fast a search is, not what
# it finds.
_N_AXES, _N_ROUNDS = 20, 2
# The least that points are divided by, and how far from right angles axes may be.
_LEAST, _NOT_RIGHT = 1e-30, 1e-12
# Rounding of a float64 sum, for each of its terms, and more.
_ERROR = 2.0**-50


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
    for _ in range(_N_ROUNDS):
        axes = y.T @ (y @ torch.linalg.qr(axes).Q)
    axes = torch.linalg.qr(axes.double()).Q
    unit = torch.eye(*axes.shape, dtype=axes.dtype)
    is_right = torch.allclose(axes.T @ axes, unit[:n_axes], rtol=0, atol=_NOT_RIGHT)
    return axes if is_right else unit
