"""The comparison of images whose patches have been measured."""

import math

import torch
import torch.nn.functional as F

from skpatchsvdd._comparison.inputs import arrange
from skpatchsvdd._comparison.network import REACH, STEP
from skpatchsvdd._comparison.weights import load_shipped
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

    Parameters
    ----------
    dense : DenseEncoder
        How patches were cut, and which scales are compared.
    typical : list of float
        What is usual for all patches, of each scale.
    """

    def __init__(self, dense, typical):
        self._size, self._device = tuple(dense.image_size), dense.device
        self._scales = [
            (i, typical[i], dense.patch_sizes[i], dense.strides[i])
            for i in dense.compared
        ]

    def __call__(self, pictures, distances, usual):
        """Return how sure it is that pixels are damaged, logits (n, height, width).

        Parameters
        ----------
        pictures : tensor of uint8 of shape (n, 1 or 3, rows, cols)
            What `keep_pictures` returns.
        distances, usual : list or dict of tensors of shape (n, rows, cols)
            By scale.
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
        down, across = (_cut_axis(length) for length in shown.shape[2:])
        bands = []
        for rows in down:
            tiles = []
            for cols in across:
                seen, known = (
                    (..., *(slice(*span(k)) for span in (rows.seen, cols.seen)))
                    for k in (1, STEP // 2)
                )
                logits = network(shown[seen], [x[known] for x in measures])
                tiles.append(logits[..., rows.kept, cols.kept])
            bands.append(torch.cat(tiles, dim=3))
        return torch.cat(bands, dim=2)


class _Tile:
    """A part of an axis, and what around it the answers there depend on."""

    def __init__(self, start, stop, length):
        self._first, self._last = max(start - REACH, 0), min(stop + REACH, length)
        self.kept = slice(start - self._first, stop - self._first)

    def seen(self, step):
        """Return the cells that are seen, counted in steps."""
        return self._first // step, -(-self._last // step)


def _cut_axis(length):
    """Cut an axis into tiles that begin at cells of every level."""
    starts = range(0, length, _TILE)
    return [_Tile(x, min(x + _TILE, length), length) for x in starts]
