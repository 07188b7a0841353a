"""Regression by a narrow Gaussian kernel on a GPU, in one kernel of Triton's."""

import torch
import torch.nn.functional as F

from skpatchsvdd._bank.fused import load_kernels, move_some, split_columns
from skpatchsvdd._bank.regression import regress
from skpatchsvdd._utils import split_halves, try_kernels

# Patches, and patches measured, of one product of a kernel.
_FUSED = 64
# How much what is usual may differ from that in float64, where kernels are tried: what
# float32 makes of weights where the kernel is narrow.
_DIFFERENCE = 1e-2


def make_fused_regression(model, rows):
    """Make a `FusedRegression` and try it; return None if it is not there or not right.

    Parameters
    ----------
    model : KernelModel
        What to do, by the plain way.
    rows : tensor of shape (n_rows, n_features)
        The rows, less the model's origin.
    """
    kernels = load_kernels(rows.device, rows.shape[1])
    if kernels is None:
        return None
    parts = model.columns, model.half_squares, model.distances, model.owners
    return try_kernels(
        "search for what is usual",
        lambda: FusedRegression(kernels, *parts),
        lambda fused: _finds_usual(fused, model, move_some(rows)),
    )


def _finds_usual(fused, model, features):
    """Whether kernels find what is usual for features, less the model's origin."""
    exact = model._replace(
        origin=torch.zeros_like(model.origin, dtype=torch.float64),
        columns=model.columns.double(),
        half_squares=model.half_squares.double(),
        distances=model.distances.double(),
    )
    pairs = [(fused(features, None), regress(exact, features.double()))]
    is_own = model.owners == model.owners[0]
    if not is_own.all():
        left_out = model.owners[:1].repeat(len(features))
        others = regress(exact.leave_out(is_own), features.double())
        pairs.append((fused(features, left_out), others))
    return all(
        torch.allclose(
            found.double() + model.typical, expected + model.typical, _DIFFERENCE, 0
        )
        for found, expected in pairs
    )


class FusedRegression:
    """Does what `regress` does on a GPU, in one kernel.

    Parameters
    ----------
    kernels : module
        See `load_kernels`.
    columns, half_squares, distances, owners : tensors
        See `KernelModel`.
    """

    def __init__(self, kernels, columns, half_squares, distances, owners):
        self._kernels = kernels
        n_features = len(columns)
        self._columns = split_columns(n_features)
        self._n_more = sum(self._columns) - n_features
        rows = F.pad(columns.T, (0, self._n_more))
        first, more = rows.tensor_split([self._columns[0]], dim=1)
        *self._rows, self._scale = split_halves(first.contiguous())
        self._labels = more.contiguous(), half_squares, distances, owners

    def __call__(self, features, left_out):
        """Return the weighted means of distances, (n,).

        Parameters
        ----------
        features : tensor of shape (n, n_features)
            Less the model's origin.
        left_out : tensor of shape (n,) or None
            For each, the owner whose rows tell nothing, or -1.
        """
        n = len(features)
        leaves = left_out is not None
        usual = features.new_empty(n)
        owners = self._labels[-1]
        self._kernels.regress[(-(-n // _FUSED),)](
            F.pad(features, (0, self._n_more)),
            *self._rows,
            *self._labels,
            left_out if leaves else owners.new_full((n,), -1),
            usual,
            n,
            len(owners),
            self._scale,
            K=self._columns[0],
            L=self._columns[1],
            Q=_FUSED,
            R=_FUSED,
            LEAVES=leaves,
        )
        return usual
