"""Regression by a narrow Gaussian kernel: means of distances, weighted by it."""

from typing import NamedTuple

import torch

# Products held at a time: on a CPU as many as stay in the cache of a core.
_CPU_PRODUCTS, _OTHER_PRODUCTS = 2**18, 2**27
# Exponents are no less than this beside the largest: what has them weighs nothing, and
# smaller results would be denormal, which take a CPU many times as long.
_LEAST = -60.0
# Half a squared distance from which nothing weighs, in units of the kernel's width.
_FAR = 1e30


class KernelModel(NamedTuple):
    """What the regression needs, on a device, in units of the kernel's width."""

    origin: torch.Tensor  # (n_features,)
    columns: torch.Tensor  # (n_features, n_rows)
    half_squares: torch.Tensor  # (n_rows,)
    distances: torch.Tensor  # (n_rows,)
    owners: torch.Tensor  # (n_rows,)
    typical: float

    def leave_out(self, owner):
        """Return the model without an owner's rows, or as it is if there are no others.

        An owner of -1 has none.
        """
        if owner < 0 or (is_out := self.owners == owner).all():
            return self
        return self._replace(half_squares=self.half_squares.masked_fill(is_out, _FAR))


def regress_images(model, features, left_out):
    """Return what is usual for the patches of images, (n_images, n_patches).

    Features are (n_images, n_patches, n_features). For each image `left_out` has the
    owner whose rows are left out, or -1.
    """
    if features.is_cuda and max(left_out) < 0:
        return regress(model, features.flatten(0, 1)).view(features.shape[:2])
    # Image by image, so that no other image matters.
    models = [model.leave_out(owner) for owner in left_out]
    return torch.stack([regress(*x) for x in zip(models, features, strict=True)])


def regress(model, features, n_products=None):
    """Return the mean of distances, weighted by the kernel, comparing with all rows.

    Features are (n, n_features). As many products are held at a time as suit the
    device, or `n_products`.
    """
    is_cpu = features.device.type == "cpu"
    products = n_products or (_CPU_PRODUCTS if is_cpu else _OTHER_PRODUCTS)
    usual = []
    for chunk in features.split(max(products // len(model.distances), 1)):
        x = chunk - model.origin
        near = torch.addmm(model.half_squares, x, model.columns, beta=-1)
        if is_cpu:
            near.clamp_(min=near.amax(dim=1, keepdim=True) + _LEAST)
        usual.append(torch.softmax(near, dim=1) @ model.distances)
    return torch.cat(usual)
