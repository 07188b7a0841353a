"""The comparison of images whose patches have been measured."""

import math

import torch
import torch.nn.functional as F

from skpatchsvdd._comparison.inputs import arrange
from skpatchsvdd._comparison.network import REACH, STEP, load_shipped
from skpatchsvdd._encoding import show_pictures
from skpatchsvdd._utils import exact_convolutions

# Pictures of more cells are compared in tiles of so many along each axis, so that
# memory does not grow with the image.
_WHOLE_CELLS = 2**18
_TILE = 512
# Surer than this is not told apart: scores are to say how abnormal images are, not how
# sure it is.
_SUREST = 8.0


class Comparer:
    """Says where images are damaged, from how their patches compare.

    `dense` says how patches were cut, and which scales are compared; `typical` is what
    is usual for all patches, of each scale.
    """

    def __init__(self, dense, typical):
        self._size, self._device = tuple(dense.image_size), dense.device
        self._scales = [
            (i, typical[i], dense.patch_sizes[i], dense.strides[i])
            for i in dense.compared
        ]

    def __call__(self, pictures, distances, usual):
        """Return how sure it is that pixels are damaged, logits (n, height, width).

        Of pictures as `keep_pictures` returns them, and of distances and what is usual,
        by scale, (n, rows, cols) each.
        """
        measures = [
            arrange(distances[i], usual[i], typical, size, stride, self._size)
            for i, typical, size, stride in self._scales
        ]
        # A CPU rounds differently for other batch sizes: image by image.
        n = 1 if self._device.type == "cpu" else len(pictures)
        parts = zip(pictures.split(n), *(x.split(n) for x in measures), strict=True)
        with torch.inference_mode(), exact_convolutions(self._device):
            logits = torch.cat([self._segment(own, rest) for own, *rest in parts])
        logits = logits.clamp(-_SUREST, _SUREST)
        logits = F.interpolate(
            logits, scale_factor=2, mode="bilinear", align_corners=False
        )
        return logits[:, 0, : self._size[0], : self._size[1]]

    def _segment(self, pictures, measures):
        network = load_shipped(self._device)
        shown = show_pictures(pictures).contiguous(memory_format=torch.channels_last)
        if math.prod(shown.shape[2:]) <= _WHOLE_CELLS:
            return network(shown, measures)
        bands = []
        for *rows, kept_rows in _cut_axis(shown.shape[2]):
            tiles = []
            for *cols, kept_cols in _cut_axis(shown.shape[3]):
                seen, known = (
                    (..., *(slice(a // step, -(-b // step)) for a, b in (rows, cols)))
                    for step in (1, STEP // 2)
                )
                logits = network(shown[seen], [x[known] for x in measures])
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
