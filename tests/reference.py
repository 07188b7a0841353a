"""Patch SVDD inspection the plain, slow way: one patch after the other."""

import numpy as np
import torch
from scipy import ndimage
from scipy.integrate import trapezoid


def damp_slow_changes(images, kept):
    """Take a share of a Gaussian blur of 8 pixels out of images (n, h, w, c)."""

    def blur(x):
        return ndimage.gaussian_filter(x, (0, 8, 8, 0), radius=24, mode="constant")

    images = np.float64(images)
    return images - (1 - kept) * blur(images) / blur(np.ones_like(images))


def patch_grid(length, patch_size, stride):
    return range(0, length - patch_size + 1, stride)


def encode_patchwise(encoder, images, patch_size, stride):
    """Cut out every patch and encode it alone: (n, rows, cols, D)."""
    height, width = images.shape[2:]
    with torch.no_grad():
        return torch.stack(
            [
                torch.stack(
                    [
                        encoder(images[:, :, i : i + patch_size, j : j + patch_size])
                        for j in patch_grid(width, patch_size, stride)
                    ],
                    dim=1,
                )
                for i in patch_grid(height, patch_size, stride)
            ],
            dim=1,
        )


def append_positions(features, stride, longer_side, unit):
    """Append row and column, in units of the image's longer side times `unit`."""
    if unit == 0:
        return features
    _, rows, cols, n = features.shape
    result = np.zeros((*features.shape[:3], n + 2))
    for i in range(rows):
        for j in range(cols):
            place = np.array([i, j]) * stride / longer_side * unit
            result[:, i, j] = [[*x, *place] for x in features[:, i, j]]
    return result


def nearest_distances(queries, bank):
    """Distance of each query to the nearest row, in float64."""
    queries, bank = np.float64(queries), np.float64(bank)
    return np.array([np.sqrt(((bank - q) ** 2).sum(axis=1)).min() for q in queries])


def usual_distances(queries, rows, distances, width):
    """Mean distance of rows that look alike, by a Gaussian kernel, plus the median."""
    queries, rows = np.float64(queries), np.float64(rows)
    usual = []
    for q in queries:
        squares = ((rows - q) ** 2).sum(axis=1)
        weights = np.exp(-(squares - squares.min()) / (2 * width))
        usual.append((weights * distances).sum() / weights.sum())
    return np.array(usual) + np.median(distances)


def spread(scores, patch_size, stride, image_size):
    """Mean over the patches that cover a pixel; elsewhere the nearest such pixel."""
    total, count = np.zeros(image_size), np.zeros(image_size)
    for i, row in enumerate(scores):
        for j, score in enumerate(row):
            place = np.s_[
                i * stride : i * stride + patch_size,
                j * stride : j * stride + patch_size,
            ]
            total[place] += score
            count[place] += 1
    covered = np.argwhere(count)
    result = np.zeros(image_size)
    for pixel in np.ndindex(*image_size):
        nearest = covered[((covered - pixel) ** 2).sum(axis=1).argmin()]
        result[pixel] = total[tuple(nearest)] / count[tuple(nearest)]
    return result


def overlap_area(masks, maps, max_fpr):
    """Per-region overlap over the false positive rate, threshold by threshold."""
    masks, maps = np.asarray(masks, dtype=bool), np.asarray(maps)
    regions = []
    for n, mask in enumerate(masks):
        labels, n_regions = ndimage.label(mask, structure=np.ones((3, 3)))
        regions += [maps[n][labels == k + 1] for k in range(n_regions)]
    thresholds = [np.inf, *np.unique(maps)[::-1]]
    fpr = [np.mean(maps[~masks] >= t) for t in thresholds]
    overlap = [np.mean([np.mean(r >= t) for r in regions]) for t in thresholds]
    xs = np.array([x for x in fpr if x < max_fpr] + [max_fpr])
    ys = np.append(
        [y for x, y in zip(fpr, overlap, strict=True) if x < max_fpr],
        _last_value(fpr, overlap, max_fpr),
    )
    return trapezoid(ys, xs) / max_fpr


def _last_value(fpr, overlap, max_fpr):
    """Overlap at `max_fpr`, along the straight line between its two thresholds."""
    after = next(i for i, x in enumerate(fpr) if x >= max_fpr)
    x0, x1 = fpr[after - 1], fpr[after]
    share = (max_fpr - x0) / (x1 - x0)
    return overlap[after - 1] + share * (overlap[after] - overlap[after - 1])
