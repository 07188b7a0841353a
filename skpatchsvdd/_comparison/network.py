"""The network that compares: from distances of patches to damage, pixel by pixel."""

import torch
import torch.nn.functional as F
from torch import nn

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
                Layer(3, first, norm),
                Layer(first, second, norm, stride=2),
                Layer(second, third, norm, stride=2),
            ]
        )
        a, b, c = _LEVELS
        self.enter = Block(_SCALE + third, a, norm)
        self.down = nn.ModuleList([Layer(a, b, norm, 2), Layer(b, c, norm, 2)])
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
            In 0..1, what `make_pictures` returns.
        scales : list of tensors of shape (n, N_INPUTS, ceil(rows / 4), ceil(cols / 4))
            What `arrange` returns.

        Returns
        -------
        logits : tensor of shape (n, 1, rows, cols)
        """
        seen = [pictures - _MID_GREY]
        for layer in self.see:
            seen.append(layer(seen[-1]))
        _, half, quarter, eighth = seen
        told = sum(self.scale(x) for x in scales) / len(scales)
        x = self.enter(torch.cat([told, eighth], dim=1))
        levels = [x]
        for down, middle in zip(self.down, self.middle, strict=True):
            x = middle(down(x))
            levels.append(x)
        for up, level in zip(self.up, levels[1::-1], strict=True):
            x = up(torch.cat([double(x, level.shape[2:]), level], dim=1))
        for fine, level in zip(self.fine, (quarter, half), strict=True):
            x = fine(torch.cat([double(x, level.shape[2:]), level], dim=1))
        return self.tell(x)


class Layer(nn.Module):
    """A convolution of 3 x 3 over an image that is continued by its edges."""

    def __init__(self, n_in, n_out, norm, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, 3, stride=stride, bias=not norm)
        self.norm = nn.BatchNorm2d(n_out) if norm else nn.Identity()

    def forward(self, x):
        """Return what the layer makes of features."""
        x = F.pad(x, (1, 1, 1, 1), mode="replicate")
        return self.norm(self.conv(x)).relu_()


class Block(nn.Sequential):
    """Two layers."""

    def __init__(self, n_in, n_out, norm):
        super().__init__(Layer(n_in, n_out, norm), Layer(n_out, n_out, norm))


def double(x, size):
    """Return maps of twice the resolution: cell i becomes cell 2 i of this size."""
    rows, cols = (2 * k - 1 for k in x.shape[2:])
    x = F.interpolate(x, (rows, cols), mode="bilinear", align_corners=True)
    missing = [max(k - have, 0) for k, have in zip(size, (rows, cols), strict=True)]
    x = F.pad(x, (0, missing[1], 0, missing[0]), mode="replicate")
    return x[:, :, : size[0], : size[1]]


def fold_norms(network):
    """Return a network without batch norm that tells the same."""
    folded = Comparison()
    folded.load_state_dict(network.state_dict(), strict=False)
    pairs = zip(_layers(network), _layers(folded), strict=True)
    with torch.no_grad():
        for layer, plain in pairs:
            norm = layer.norm
            scale = norm.weight / (norm.running_var + norm.eps).sqrt()
            plain.conv.weight.copy_(layer.conv.weight * scale[:, None, None, None])
            plain.conv.bias.copy_(norm.bias - norm.running_mean * scale)
    return folded


def _layers(network):
    return [x for x in network.modules() if isinstance(x, Layer)]
