"""Regression by a narrow Gaussian kernel on a GPU: a Triton kernel, or plain torch."""

import functools

import torch
import torch.nn.functional as F

from skpatchsvdd._bank.fused import load_kernels, move_rows, split_columns
from skpatchsvdd._bank.regression import regress_images
from skpatchsvdd._gpu import KernelWithFallback, split_halves

# Patches, and patches measured, of one product of a kernel.
_FUSED = 64
# How much what is usual may differ from that in float64, where kernels are tried: what
# float32 makes of weights where the kernel is narrow.
_DIFFERENCE = 1e-2


def make_regression(model, rows):
    """Return a function that is a `FusedRegression`, or else `regress_images`.

    Parameters
    ----------
    model : KernelModel
        What to compute, on the device.
    rows : tensor of shape (n_rows, n_features)
        The rows, less the model's origin.
    """

    def make_fused():
        kernels = load_kernels(rows.device, rows.shape[1])
        return None if kernels is None else FusedRegression(kernels, model)

    return KernelWithFallback(
        "search for what is usual",
        make_fused,
        lambda: functools.partial(regress_images, model),
        lambda fused, plain: _finds_usual(fused, model, move_rows(rows)),
    )


def _finds_usual(fused, model, features):
    """Whether kernels find what float64 finds, for features less the model's origin."""
    exact = model._replace(
        origin=model.origin.double(),
        columns=model.columns.double(),
        half_squares=model.half_squares.double(),
        distances=model.distances.double(),
    )
    features = (features + model.origin)[None]
    for left_out in ([-1], [int(model.owners[0])]):
        found = fused(features, left_out).double() + model.typical
        expected = regress_images(exact, features.double(), left_out) + model.typical
        if not torch.allclose(found, expected, _DIFFERENCE, 0):
            return False
    return True


class FusedRegression:
    """Does what `regress_images` does on a GPU, in one kernel.

    Parameters
    ----------
    kernels : module
        See `load_kernels`.
    model : KernelModel
        What to compute.
    """

    def __init__(self, kernels, model):
        self._kernels = kernels
        self._origin = model.origin
        self._has_others = bool((model.owners != model.owners[0]).any())
        n_features = len(model.columns)
        self._columns = split_columns(n_features)
        self._n_more = sum(self._columns) - n_features
        rows = F.pad(model.columns.T, (0, self._n_more))
        first, more = rows.tensor_split([self._columns[0]], dim=1)
        *self._rows, self._scale = split_halves(first.contiguous())
        self._labels = (
            more.contiguous(),
            model.half_squares,
            model.distances,
            model.owners,
        )

    def __call__(self, features, left_out):
        """Return the weighted means of distances; see `regress_images`."""
        x = features.flatten(0, 1) - self._origin
        owners = self._labels[-1]
        leaves = self._has_others and max(left_out) >= 0
        if leaves:
            out = torch.tensor(left_out, dtype=torch.int32, device=x.device)
            out = out.repeat_interleave(features.shape[1])
        else:
            out = owners.new_full((len(x),), -1)
        usual = x.new_empty(len(x))
        self._kernels.regress[(-(-len(x) // _FUSED),)](
            F.pad(x, (0, self._n_more)),
            *self._rows,
            *self._labels,
            out,
            usual,
            len(x),
            len(owners),
            self._scale,
            K=self._columns[0],
            L=self._columns[1],
            Q=_FUSED,
            R=_FUSED,
            LEAVES=leaves,
        )
        return usual.view(features.shape[:2])
