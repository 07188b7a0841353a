"""The comparison of images whose patches have been measured: logits of damage."""

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._comparison.network import REACH, STEP, load_shipped
from skpatchsvdd._encoding import show_pictures
from skpatchsvdd._utils import exact_convolutions

# Logarithms of ratios are cut here: what is farther away is damaged all the same.
_FARTHEST = 4.0
# Pictures of more cells are compared in tiles of so many along each axis, so that
# memory does not grow with the image.
_WHOLE_CELLS = 2**18
_TILE = 512
# Logits are cut here: scores are to say how abnormal images are, not how certain that
# is.
_LARGEST = 8.0


def compare(pictures, distances, variation, typical, dense):
    """Return logits of damage of pixels, (n, height, width).

    Of pictures as `keep_pictures` returns them, and of distances to the nearest normal
    patches, the local normal variation and the typical one of all patches, by scale:
    (n, rows, cols), (n, rows, cols) and a number. `dense` says how patches were cut,
    and which scales are compared.
    """
    size, device = tuple(dense.image_size), dense.device
    measures = [
        arrange(
            distances[i],
            variation[i],
            typical[i],
            dense.patch_sizes[i],
            dense.strides[i],
            size,
        )
        for i in dense.compared
    ]
    # A CPU rounds differently for other batch sizes: image by image.
    n = 1 if device.type == "cpu" else len(pictures)
    parts = zip(pictures.split(n), *(x.split(n) for x in measures), strict=True)
    with torch.inference_mode(), exact_convolutions(device):
        logits = torch.cat([_segment(own, rest, device) for own, *rest in parts])
    logits = logits.clamp(-_LARGEST, _LARGEST)
    logits = F.interpolate(logits, scale_factor=2, mode="bilinear", align_corners=False)
    return logits[:, 0, : size[0], : size[1]]


def arrange(distances, variation, typical, patch_size, stride, image_size):
    """Return what is known of a scale at every eighth pixel, (n, N_INPUTS, rows, cols).

    Of the distances of patches (n, rows, cols) to the nearest normal ones, of local
    normal variation, and of `typical`, that of all patches, a number or (n, 1, 1).
    """
    tiny = math.exp(-_FARTHEST)
    far, normal = (
        (x / typical).clamp(min=tiny).log().clamp(max=_FARTHEST)
        for x in (distances, variation)
    )
    measures = torch.stack([far, normal, far - normal], dim=1)
    down, across = (
        _place(length, n, patch_size, stride, measures.device)
        for length, n in zip(image_size, measures.shape[2:], strict=True)
    )
    measures = down @ measures @ across.T
    size = torch.full_like(measures[:, :1], math.log2(patch_size / 32))
    return torch.cat([measures, size], dim=1)


@functools.lru_cache(maxsize=32)
def _place(length, n_patches, patch_size, stride, device):
    """Weights of patches at every eighth pixel along an axis, by linear interpolation.

    Beyond the middles of the first and the last patch, these stand for all.
    """
    pixels = np.arange(0, length, STEP) + 1  # the middles of every fourth pair
    middles = patch_size / 2 + stride * np.arange(n_patches)
    weights = [np.interp(pixels, middles, own) for own in np.eye(n_patches)]
    return torch.from_numpy(np.stack(weights, axis=1).astype(np.float32)).to(device)


def _segment(pictures, measures, device):
    """Return what the network says of cells, in tiles where there are many."""
    network = load_shipped(device)
    shown = show_pictures(pictures).contiguous(memory_format=torch.channels_last)
    if math.prod(shown.shape[2:]) <= _WHOLE_CELLS:
        return network(shown, measures)
    bands = []
    for *rows, kept_rows in _cut_axis(shown.shape[2]):
        tiles = []
        for *cols, kept_cols in _cut_axis(shown.shape[3]):
            cells, places = (
                (..., *(slice(a // step, -(-b // step)) for a, b in (rows, cols)))
                for step in (1, STEP // 2)
            )
            logits = network(shown[cells], [x[places] for x in measures])
            tiles.append(logits[..., kept_rows, kept_cols])
        bands.append(torch.cat(tiles, dim=3))
    return torch.cat(bands, dim=2)


def _cut_axis(length):
    """Cut an axis into tiles that begin at cells of every level.

    Yields the first and the last cell that the answers of a tile depend on, and which
    of the answers are its own.
    """
    for start in range(0, length, _TILE):
        stop = min(start + _TILE, length)
        first, last = max(start - REACH, 0), min(stop + REACH, length)
        yield first, last, slice(start - first, stop - first)
