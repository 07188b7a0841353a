"""The finest scale of large images, which sees their full resolution in tiles."""

import numpy as np
import torch
from torch import nn

from skpatchsvdd._encoding.base import EmptyConv2d, grid_shape
from skpatchsvdd._encoding.procedural import (
    LENGTH,
    STAGES,
    ProceduralEncoder,
    to_three_channels,
)
from skpatchsvdd._encoding.scales import STEPS, average_cells, bring

# Pixels of a patch, about, and the smallest patch in pixels of the reduced image: no
# more patches than a quarter of its pixels.
_PATCH, _SMALLEST = 16, 2
# Pixels along a side of a tile, about, and those around it that its features depend on,
# a few more than the network sees.
_TILE, _MARGIN = 1024, 32
# Patches in a bank, unless a size is asked for.
MOST_ROWS = 20_000


class DetailEncoder(ProceduralEncoder):
    """Features of small patches at full resolution, by the first stage of the network.

    Patch sizes, strides and grids are in pixels of the reduced image; each of these is
    `reduction` pixels along each axis of the images that are encoded. Patches lie side
    by side, and a feature is the mean over its patch. The embedding half whitens the
    features of normal images, and is not trained.
    """

    name = "detail"
    is_trainable = False
    is_capturable = False
    sees_detail = True
    margin, tile_step = 0, 1  # it cuts tiles of its own
    most_rows = MOST_ROWS
    tile = _TILE
    shares = (1.0,)  # its weight beside the other scales is that of `maps`

    def __init__(self, n_channels, embedding_dim=LENGTH, reduction=2):
        super().__init__(n_channels, embedding_dim, reduction)
        self.network.stages = self.network.stages[:1]
        self.project = nn.ModuleList([EmptyConv2d(STAGES[0], LENGTH, 1)])
        self.scale_names = ("detail",)

    @staticmethod
    def scales(reduction):
        """Return the patch size, in pixels of the reduced image."""
        return (max(round(_PATCH / reduction), _SMALLEST),)

    @classmethod
    def default_strides(cls, reduction):
        """Return the stride: patches lie side by side."""
        return cls.scales(reduction)

    @classmethod
    def make_detail(cls, n_channels, reduction, embedding_dim=LENGTH):
        """Return the encoder with the weights of the package."""
        return cls(n_channels, embedding_dim, reduction).load_weights()

    @classmethod
    def check_weights(cls, config, arrays):
        """Raise if a model file holds what cannot be an encoder."""
        super().check_weights(config, arrays)
        if config[2] < 2:
            raise ValueError("its encoder does not fit its images")

    def encode_patches(self, batches):
        """Return features of whole patches, of any size, at full resolution."""
        features = []
        for patches in batches:
            x = self._run(patches).mean(dim=(2, 3), keepdim=True)
            features.append(self.project[0](x).flatten(1) @ self.embedding[0].T)
        return features

    def encode_pretrained(self, images):
        """Return features before they are embedded, tile by tile."""
        (patch_size,), (stride,) = self.patch_sizes, self.strides
        reduction = self.config[2]
        patch, step = patch_size * reduction, stride * reduction
        down, across = (
            self._cut_axis(length, patch, step) for length in images.shape[2:]
        )
        bands = [
            torch.cat([self._encode_tile(images, rows, cols) for cols in across], dim=3)
            for rows in down
        ]
        return [torch.cat(bands, dim=2)]

    def _cut_axis(self, length, patch, step):
        """Cut an axis into tiles: the pixels that each sees, and its patches' middles.

        Tiles begin at cells of the network. Middles are in pixels of the tile.
        """
        (n_patches,) = grid_shape((length,), patch, step)
        n_each = max(self.tile // step, 1)
        tiles = []
        for start in range(0, n_patches, n_each):
            starts = step * np.arange(start, min(start + n_each, n_patches))
            first = max(starts[0] - _MARGIN, 0) // STEPS[0] * STEPS[0]
            last = min(starts[-1] + patch + _MARGIN, length)
            middles = (starts - first + (patch - 1) / 2) / STEPS[0]
            tiles.append((slice(first, last), middles, patch / STEPS[0]))
        return tiles

    def _encode_tile(self, images, rows, cols):
        cells = self._run(images[:, :, rows[0], cols[0]])
        down, across = (
            torch.from_numpy(average_cells(middles, width, n)).to(cells)
            for (_, middles, width), n in zip(
                (rows, cols), cells.shape[2:], strict=True
            )
        )
        return self.project[0](bring(cells, down, across))

    def _run(self, images):
        if images.shape[1] != 3:
            images = to_three_channels(images)
        # Laid out as the network's weights are.
        x = images.contiguous(memory_format=torch.channels_last)
        return self.network(x)[0]
