"""The embedding that training begins with: features half whitened by the part's own."""

import numpy as np
import torch

from skpatchsvdd._encoding import choose_patches

# Images whose features are looked at, and of large ones, of which a few tiles are.
_N_IMAGES, _N_LARGE = 64, 8
# Variance that is added along every axis, as a fraction of the mean one: what hardly
# varies does not count without bounds. With few images more of it, as a fraction
# divided by their number.
_SHRINKAGE, _FEW = 0.02, 1.0
# Of variances, by which features are scaled: -1/2 would whiten them.
_POWER = -1 / 4


def whiten(encoder, images, setting):
    r"""Return an encoder whose embedding half whitens the features of normal images.

    With the covariance :math:`C` of the features of all their patches at a scale, in
    units of the mean variance, the squared distance of two patches is
    :math:`(f - g)^T (C + s I)^{-1/2} (f - g)`: along axes on which the part itself
    varies, differences count less. Of fewer dimensions, the main axes are kept.

    The power is one half of Mahalanobis': whole whitening finds hardly more, and takes
    away what exact search is fast by, that few axes tell most.
    """
    n_dims = encoder.config[1]
    matrices = [
        whitening_matrix(covariance, len(images), n_dims)
        for covariance in measure_covariances(encoder, images, setting)
    ]
    return encoder.embed(matrices)


def measure_covariances(encoder, images, setting):
    """Return the covariance of features before they are embedded, by scale."""
    plain = encoder.embed([torch.eye(encoder.full_length)] * len(encoder.embedding))
    dense = setting.make(plain)
    choose, cells = choose_patches(dense)
    is_large = choose is not list or setting.reduction > 1
    n = min(_N_LARGE if is_large else _N_IMAGES, len(images))
    spaced = np.linspace(0, len(images) - 1, n).astype(int)
    covariances = []
    for x, counted in zip(
        dense.encode_stack(images.take(spaced), choose), cells, strict=True
    ):
        rows = x.flatten(1, 2)[:, torch.from_numpy(counted).to(x.device)].flatten(0, 1)
        # In float64, on the CPU: the same on all machines but for rounding.
        rows = rows.cpu().double()
        rows = rows - rows.mean(dim=0)
        covariances.append(rows.T @ rows / len(rows))
    return covariances


def whitening_matrix(covariance, n_images, n_dims):
    """Return the matrix, (n_dims, n_features), that half whitens features."""
    mean = covariance.diagonal().mean()
    values, axes = torch.linalg.eigh(covariance)
    values, axes = values.flip(0).clamp(min=0), axes.flip(1)
    if mean == 0:  # nothing varies
        return axes.T[:n_dims]
    scales = (values / mean + shrinkage(n_images)) ** _POWER
    return (axes * scales).T[:n_dims]


def shrinkage(n_images):
    """Return what is added to all variances, as a fraction of the mean one."""
    return _SHRINKAGE + _FEW / n_images
