"""The comparison of images with normal ones: from distances of patches to damage."""

import functools
import math
from importlib.resources import files

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._encoding import Layer, fold_norms, show_pictures
from skpatchsvdd._utils import exact_convolutions, read_tensors

# Channels of what is known of each scale, of what is seen of the image at every second,
# fourth and eighth pixel, of the levels at every eighth, sixteenth and 32nd pixel, and
# on the way back at every fourth and second pixel.
_SCALE = 32
_SEEN = (16, 24, 32)
_LEVELS = (64, 96, 128)
_FINE = (32, 16)
# Pixels from one cell of the first level to the next.
STEP = 8
# Cells of a picture around one that the answer there depends on, at most; a multiple of
# the largest stride.
REACH = 160
# Numbers that say how a patch compares: the logarithm of its distance, of local
# normal variation, of both's ratio, and of its size.
N_INPUTS = 4
_MID_GREY = 0.5
# Weights that come with the package.
WEIGHTS = files("skpatchsvdd._comparison") / "comparison.safetensors"
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
    # A CPU rounds differently for other batch sizes: image by image.
    n = 1 if device.type == "cpu" else len(pictures)
    logits = []
    for start in range(0, len(pictures), n):
        own = slice(start, start + n)
        measures = [
            arrange(
                distances[i][own],
                variation[i][own],
                typical[i],
                dense.patch_sizes[i],
                dense.strides[i],
                size,
            )
            for i in dense.compared
        ]
        with torch.inference_mode(), exact_convolutions(device):
            logits.append(_segment(pictures[own], measures, device))
    logits = torch.cat(logits)
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


# Never dropped: a CUDA graph reads where it was when that was recorded.
@functools.cache
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


class Comparison(nn.Module):
    """A small U-Net that sees how patches compare with normal ones, and the picture.

    A picture has half the resolution of its image. Cell i of a level of stride s is
    centred on cell s / 2 * i of it. The network knows neither what a feature is nor how
    many scales there are: what it is told of them is added up. With `norm`, layers are
    followed by batch norm, for training; else they have a bias.
    """

    def __init__(self, norm=False):
        super().__init__()
        self.scale = nn.Sequential(
            nn.Conv2d(N_INPUTS, _SCALE, 1), nn.ReLU(), nn.Conv2d(_SCALE, _SCALE, 1)
        )
        first, second, third = _SEEN
        layers = ((3, first, 1), (first, second, 2), (second, third, 2))
        self.see = nn.ModuleList(Layer(*x, norm) for x in layers)
        a, b, c = _LEVELS
        self.enter = Block(_SCALE + third, a, norm)
        self.down = nn.ModuleList([Layer(a, b, 2, norm), Layer(b, c, 2, norm)])
        self.middle = nn.ModuleList([Block(b, b, norm), Block(c, c, norm)])
        self.up = nn.ModuleList([Block(c + b, b, norm), Block(b + a, a, norm)])
        d, e = _FINE
        self.fine = nn.ModuleList(
            [Block(a + second, d, norm), Block(d + first, e, norm)]
        )
        self.tell = nn.Conv2d(e, 1, 1)

    def forward(self, pictures, scales):
        """Return logits of damage, (n, 1, rows, cols).

        Of pictures (n, 3, rows, cols) as `show_pictures` returns them, in 0..1, and of
        what `arrange` returns, for each scale.
        """
        seen = [pictures - _MID_GREY]
        for layer in self.see:
            seen.append(layer(seen[-1]).relu_())
        _, half, quarter, eighth = seen
        measures = sum(self.scale(x) for x in scales) / len(scales)
        x = self.enter(torch.cat([measures, eighth], dim=1))
        levels = [x]
        for down, middle in zip(self.down, self.middle, strict=True):
            x = middle(down(x).relu_())
            levels.append(x)
        for up, level in zip(self.up, levels[1::-1], strict=True):
            x = up(torch.cat([double(x, level.shape[2:]), level], dim=1))
        for fine, level in zip(self.fine, (quarter, half), strict=True):
            x = fine(torch.cat([double(x, level.shape[2:]), level], dim=1))
        return self.tell(x)


class Block(nn.Sequential):
    """Two layers."""

    def __init__(self, n_in, n_out, norm):
        super().__init__(*(Layer(k, n_out, norm=norm) for k in (n_in, n_out)))

    def forward(self, x):
        """Return what the layers make of features."""
        for layer in self:
            x = layer(x).relu_()
        return x


def double(x, size):
    """Return maps of twice the resolution: cell i becomes cell 2 i of this size."""
    rows, cols = (2 * k - 1 for k in x.shape[2:])
    x = F.interpolate(x, (rows, cols), mode="bilinear", align_corners=True)
    missing = [max(k - have, 0) for k, have in zip(size, (rows, cols), strict=True)]
    x = F.pad(x, (0, missing[1], 0, missing[0]), mode="replicate")
    return x[:, :, : size[0], : size[1]]


def fold_comparison(network):
    """Return a network without batch norm that tells the same."""
    folded = Comparison()
    folded.load_state_dict(network.state_dict(), strict=False)
    return fold_norms(network, folded)


def read_comparison(path=None):
    """Return the network and the page about it, by default those of the package.

    How these were made: docs/user_guide/procedural.rst.
    """
    arrays, page = read_tensors(path or WEIGHTS)
    network = Comparison()
    weights = {k: torch.from_numpy(v.astype(np.float32)) for k, v in arrays.items()}
    network.load_state_dict(weights)
    return network.requires_grad_(False).eval(), page


@functools.cache
def load_shipped(device):
    """Return the network of the package on a device, laid out as images are."""
    network, _ = read_comparison()
    return network.to(device, memory_format=torch.channels_last)
