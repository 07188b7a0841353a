"""The network that has learnt from formulas alone, and its weights."""

import itertools
from importlib.resources import files

import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._encoding.networks import EmptyConv2d

# Channels of the first layer, at every second pixel, and of the stages after it, each
# at half the resolution of the one before.
STEM, STAGES = 32, (64, 128, 224)
N_BLOCKS = 2
# Numbers that the features of each stage are brought to, along their main axes: few
# enough to search fast.
LENGTH = 64
# Weights that come with the package. How they were made: docs/user_guide/formulas.rst.
WEIGHTS = files("skpatchsvdd._encoding") / "known.safetensors"
_MID_GREY = 0.5


class KnownNetwork(nn.Module):
    """Residual stages at every fourth, eighth and sixteenth pixel.

    Images are continued by their own edges: zeros there would tell a network where in
    the image it is. For training, layers are followed by batch norm; else they have a
    bias.
    """

    def __init__(self, norm=False):
        super().__init__()
        self.stem = Layer(3, STEM, stride=2, norm=norm)
        self.stages = nn.ModuleList(
            Stage(n_in, n_out, norm)
            for n_in, n_out in itertools.pairwise((STEM, *STAGES))
        )

    def forward(self, images, n_stages=None):
        """Return features by stage, or of the first ones; images are in 0..1."""
        x = self.stem(images - _MID_GREY).relu_()
        features = []
        for stage in self.stages[:n_stages]:
            x = stage(x)
            features.append(x)
        return features


class Layer(nn.Module):
    """A convolution of 3 x 3 over an image that is continued by its edges."""

    def __init__(self, n_in, n_out, stride=1, norm=False):
        super().__init__()
        make = nn.Conv2d if norm else EmptyConv2d  # weights to train, or to be read
        self.conv = make(n_in, n_out, 3, stride=stride, bias=not norm)
        self.norm = nn.BatchNorm2d(n_out) if norm else nn.Identity()

    def forward(self, x):
        """Return what the layer makes of features, before the activation."""
        return self.norm(self.conv(_continue_edges(x)))


def _continue_edges(x):
    """Repeat the first and last rows and columns."""
    if x.device.type == "cpu":
        return F.pad(x, (1, 1, 1, 1), mode="replicate")
    # A GPU's padding would change the layout in memory.
    x = torch.cat([x[:, :, :1], x, x[:, :, -1:]], dim=2)
    return torch.cat([x[..., :1], x, x[..., -1:]], dim=3)


class Stage(nn.Module):
    """Half the resolution, then residual blocks."""

    def __init__(self, n_in, n_out, norm):
        super().__init__()
        self.down = Layer(n_in, n_out, stride=2, norm=norm)
        self.blocks = nn.ModuleList(
            nn.ModuleList(Layer(n_out, n_out, norm=norm) for _ in range(2))
            for _ in range(N_BLOCKS)
        )

    def forward(self, x):
        """Return features at half the resolution."""
        x = self.down(x).relu_()
        for first, second in self.blocks:
            x = second(first(x).relu_()).add_(x).relu_()
        return x


def fold_norms(network, folded=None):
    """Return a network without batch norm that gives the same features.

    `folded` is one of the same kind to write into, a new `KnownNetwork` if not given.
    """
    folded = KnownNetwork() if folded is None else folded
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
