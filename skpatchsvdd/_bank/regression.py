"""Regression by a narrow Gaussian kernel: by plain torch, or a Triton kernel."""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F

from skpatchsvdd._bank.fused import load_kernels, move_rows, split_columns
from skpatchsvdd._gpu import KernelWithFallback, split_halves
from skpatchsvdd._utils import expand

# Products held at a time: on a CPU as many as stay in the cache of a core.
_CPU_PRODUCTS, _GPU_PRODUCTS = 2**18, 2**27
# Exponents are no less than this beside the largest: what has them weighs nothing, and
# smaller results would be denormal, which take a CPU many times as long.
_LEAST = -60.0
# Patches, and patches measured, of one product of a kernel.
_FUSED = 64
# How much what is usual may differ from that in float64, where kernels are tried: what
# float32 makes of weights where the kernel is narrow.
_DIFFERENCE = 1e-2


class KernelModel(NamedTuple):
    """What the regression needs, on a device, in units of the kernel's width."""

    origin: torch.Tensor
    columns: torch.Tensor
    half_squares: torch.Tensor
    distances: torch.Tensor
    owners: torch.Tensor
    typical: float

    def leave_out(self, owner):
        """Return the model without an owner's rows, or as it is if there are no others.

        An owner of -1 has none.
        """
        if owner < 0 or (self.owners == owner).all():
            return self
        # They are infinitely far away.
        half_squares = self.half_squares.masked_fill(self.owners == owner, torch.inf)
        return self._replace(half_squares=half_squares)


def regress_images(model, features, left_out):
    """Return what is usual for the patches of images, (n_images, n_patches).

    Features are (n_images, n_patches, n_features). For each image `left_out` has the
    owner whose rows are left out, or -1.
    """
    if features.device.type != "cpu" and max(left_out) < 0:
        return regress(model, features.flatten(0, 1)).view(features.shape[:2])
    # Image by image, so that no other image matters.
    pairs = zip(features, left_out, strict=True)
    return torch.stack([regress(model.leave_out(owner), x) for x, owner in pairs])


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


def make_regression(model, rows):
    """Return a function that is a `FusedRegression`, or else `regress_images`.

    `rows`, (n_rows, n_features), are those of the model less its origin.
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
    """Does what `regress_images` does on a GPU, in one kernel."""

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
        # Half squares, distances and owners.
        self._labels = more.contiguous(), *model[2:5]

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
        args = (F.pad(x, (0, self._n_more)), *self._rows, *self._labels, out, usual)
        args = (*args, len(x), len(owners), self._scale)
        columns = {"K": self._columns[0], "L": self._columns[1]}
        self._kernels.regress[(-(-len(x) // _FUSED),)](
            *args, **columns, Q=_FUSED, R=_FUSED, LEAVES=leaves
        )
        return usual.view(features.shape[:2])
