"""Regression by a narrow Gaussian kernel, by plain torch."""

from typing import NamedTuple

import torch

from skpatchsvdd._utils import expand

# Products held at a time: on a CPU as many as stay in the cache of a core.
_CPU_PRODUCTS, _GPU_PRODUCTS = 2**18, 2**27
# Exponents are no less than this beside the largest: what has them weighs nothing, and
# smaller results would be denormal, which take a CPU many times as long.
_LEAST = -60.0


class KernelModel(NamedTuple):
    """What the regression needs, on a device, in units of the kernel's width."""

    origin: torch.Tensor
    columns: torch.Tensor
    half_squares: torch.Tensor
    distances: torch.Tensor
    owners: torch.Tensor
    typical: float

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
    return regress(model, features)


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
