"""Squared distances of many points, expanded into one matrix product."""

import torch


def expand(half_squares, x, columns):
    r"""Return half the squared distance of every pair, without the term of x alone.

    .. math:: \tfrac12 \| x - y \|^2 - \tfrac12 \| x \|^2
        = \tfrac12 \| y \|^2 - x \cdot y

    `halve_squares` gives those of y, `as_columns` its points. Products are as wrong as
    rounding makes them; see ``_bank.distances.product_error``.
    """
    # (m,), (n, n_features) and (n_features, m) to (n, m)
    return torch.addmm(half_squares, x, columns, alpha=-1)


def halve_squares(rows):
    """Return half the squared length of each row, (n,)."""
    return rows.square().sum(dim=1) / 2


def as_columns(rows):
    """Return rows as columns, a copy: on ARM a product with a view is twice as slow."""
    return rows.T.contiguous()
