"""The network that compares: from distances of patches to damage, pixel by pixel."""

import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._encoding import Layer, fold_norms

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
# Numbers that say how a patch compares: the logarithm of its distance, of what is
# usual, of both's ratio, and of its size.
N_INPUTS = 4
_MID_GREY = 0.5


class Comparison(nn.Module):
    """A small U-Net that sees how patches compare with normal ones, and the picture.

    A picture has half the resolution of its image. Cell i of a level of stride s is
    centred on cell s / 2 * i of it. The network knows neither what a feature is nor how
    many scales there are: what it is told of them is added up.

    Parameters
    ----------
    norm : bool
        Whether layers are followed by batch norm, for training; else they have a bias.
    """

    def __init__(self, norm=False):
        super().__init__()
        self.scale = nn.Sequential(
            nn.Conv2d(N_INPUTS, _SCALE, 1), nn.ReLU(), nn.Conv2d(_SCALE, _SCALE, 1)
        )
        first, second, third = _SEEN
        self.see = nn.ModuleList(
            [
                Layer(3, first, 1, norm),
                Layer(first, second, 2, norm),
                Layer(second, third, 2, norm),
            ]
        )
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
        """Return how sure it is that there is damage, logits.

        Parameters
        ----------
        pictures : tensor of shape (n, 3, rows, cols)
            In 0..1, what `show_pictures` returns.
        scales : list of tensors of shape (n, N_INPUTS, ceil(rows / 4), ceil(cols / 4))
            What `arrange` returns.

        Returns
        -------
        logits : tensor of shape (n, 1, rows, cols)
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
        layers = (Layer(k, n_out, norm=norm) for k in (n_in, n_out))
        super().__init__(*layers)

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
