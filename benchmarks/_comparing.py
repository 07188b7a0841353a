"""How the patches of drawn images compare, as the estimator would measure it."""

import math

import torch

from skpatchsvdd._bank.variation import _NARROWEST, _WIDTH
from skpatchsvdd._comparison import arrange
from skpatchsvdd._encoding.positions import (
    _BEGIN,
    _FULL,
    _FULL_WEIGHT,
    _SAME,
    _fraction_within,
)
from skpatchsvdd._encoding.scales import SCALES
from skpatchsvdd._training.embedding import shrinkage

# Iterations: ten halvings of how far the smallest eigenvalues are from 1, and a few.
_N_NEWTON = 18


@torch.no_grad()
def compare(encoder, comparisons):
    """Return what the comparison sees of drawn images, by scale.

    Parameters
    ----------
    encoder : ProceduralEncoder
        On the device of the images.
    comparisons : Comparisons
        n queries with k normal images each.
    """
    query, normal = comparisons.query, comparisons.normal
    k, n = normal.shape[:2]
    size = query.shape[2:]
    images = torch.cat([query[None], normal]).flatten(0, 1)
    device = images.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        images = images.contiguous(memory_format=torch.channels_last)
        features = encoder.encode_images(images, encoder.strides)
    told = []
    for x, patch_size in zip(features, encoder.patch_sizes, strict=True):
        stride = SCALES[patch_size].stride
        x = x.float().view(k + 1, n, *x.shape[1:]).permute(1, 0, 3, 4, 2)
        x = _whiten(x)
        distances, usual, typical = measure(x, stride, size)
        told.append(arrange(distances, usual, typical, patch_size, stride, size))
    return told


def _whiten(features):
    """Return the features of scenes, half whitened by those of their normal images.

    Their distances are those of the package's `whiten`; (n, k + 1, rows, cols, D).
    """
    normal = features[:, 1:].flatten(1, 3)
    normal = normal - normal.mean(dim=1, keepdim=True)
    covariance = normal.mT @ normal / normal.shape[1]
    mean = covariance.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    identity = torch.eye(covariance.shape[1], device=covariance.device)
    covariance = covariance / mean.clamp(min=1e-9)
    metric = _invert_root(covariance + shrinkage(features.shape[1] - 1) * identity)
    root = torch.linalg.cholesky(metric)
    return (features.flatten(1, 3) @ root).view(features.shape)


def _invert_root(matrices):
    """Return the inverse square roots of positive matrices, by Newton's iteration.

    In products alone: a GPU finds the axes of many small matrices one by one.
    """
    identity = torch.eye(matrices.shape[1], device=matrices.device)
    norm = matrices.norm(dim=(1, 2), keepdim=True)
    y, z = matrices / norm, identity.expand_as(matrices)
    for _ in range(_N_NEWTON):
        step = 1.5 * identity - 0.5 * z @ y
        y, z = y @ step, step @ z
    return z / norm.sqrt()


def measure(features, stride, image_size):
    """Return distances of the first image's patches, what is usual, and typical.

    Parameters
    ----------
    features : tensor of shape (n, k + 1, rows, cols, D)
        Of a query and its normal images.
    stride : int
        Pixels from one patch to the next.
    image_size : tuple of (height, width)
        Size of the images.
    """
    n, many, rows, cols, _ = features.shape
    k, p = many - 1, rows * cols
    x = features.flatten(2, 3)
    x = x - x[:, 1:].mean(dim=(1, 2), keepdim=True)
    query, normal = x[:, 0], x[:, 1:].flatten(1, 2)
    among = _squares(normal, normal).view(n, k, p, k, p)
    blocks = among.diagonal(dim1=1, dim2=3)  # (n, p, p, k): the same image
    within = blocks.clone()
    blocks.fill_(torch.inf)
    cells = torch.arange(p, device=x.device)
    row, col = cells // cols, cells % cols
    unit = _find_unit(among, row, col, stride, image_size)
    moved = (row[:, None] - row) ** 2 + (col[:, None] - col) ** 2
    places = unit[:, None, None] ** 2 * moved  # (n, p, p)
    among += places[:, None, :, None]
    nearest = among.flatten(3).amin(dim=3).flatten(1)
    own = nearest.clamp(min=0).sqrt()
    typical = own.median(dim=1).values.clamp(min=1e-4)
    within += places[..., None]
    within.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    others = within.amin(dim=2).transpose(1, 2).flatten(1)  # (n, k * p)
    width = _WIDTH * torch.minimum(nearest, others).median(dim=1).values
    least = _NARROWEST * (normal**2).sum(dim=2).mean(dim=1) / 2
    width = torch.maximum(width, least).clamp(min=1e-9)
    away = _squares(query, normal).view(n, p, k, p) + places[:, :, None]
    away = away.flatten(2)
    distances = away.amin(dim=2).clamp(min=0).sqrt()
    weights = torch.softmax(away.div_(-2 * width[:, None, None]), dim=2)
    usual = (weights @ own[..., None])[..., 0] + typical[:, None]
    grid = (n, rows, cols)
    return distances.view(grid), usual.view(grid), typical[:, None, None]


def _find_unit(among, row, col, stride, image_size):
    """Return by how much squared distances grow with a cell between two patches.

    As `find_unit` of the package does, for scenes of which squared distances between
    patches of different images are given, (n, k, p, k, p), infinite within an image.
    """
    n, _, p, _, _ = among.shape
    nearest, found = among.flatten(3).min(dim=3)
    found = found % p
    reach = max(_SAME // stride, 1)
    near = ((row[found] - row).abs() <= reach) & ((col[found] - col).abs() <= reach)
    counts = int(row[-1]) + 1, int(col[-1]) + 1
    chance = math.prod(_fraction_within(count, reach) for count in counts)
    fraction = near.float().mean(dim=(1, 2))
    alignment = (fraction - chance) / (1 - chance) if chance < 1 else 0 * fraction
    counted = ((alignment - _BEGIN) / (_FULL - _BEGIN)).clamp(0, 1)
    distance = nearest.clamp(min=0).view(n, -1).sqrt().median(dim=1).values
    return _FULL_WEIGHT * counted * distance * stride / max(image_size)


def _squares(x, y):
    """Return squared distances of rows, (n, rows of x, rows of y)."""
    a, b = (x**2).sum(2), (y**2).sum(2)
    squares = torch.baddbmm(b[:, None], x, y.transpose(1, 2), alpha=-2)
    return squares.add_(a[:, :, None])
