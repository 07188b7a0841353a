"""The network that has learnt from formulas, and how it is trained with batch norm."""

import torch
import torch.nn.functional as F
from torch import nn

# Channels of the first layer, at every second pixel, and of the stages after it, each
# at half the resolution of the one before.
STEM, STAGES = 32, (64, 128, 224)
N_BLOCKS = 2
HEAD = 96


class KnownNetwork(nn.Module):
    """Residual stages at every fourth, eighth and sixteenth pixel, a head on each.

    Images are continued by their own edges: zeros there would tell a network where in
    the image it is.

    Parameters
    ----------
    norm : bool
        Whether layers are followed by batch norm, for training; else by a bias.
    """

    def __init__(self, norm=False):
        super().__init__()
        self.stem = Layer(3, STEM, stride=2, norm=norm)
        widths = (STEM, *STAGES)
        self.stages = nn.ModuleList(
            Stage(n_in, n_out, norm)
            for n_in, n_out in zip(widths[:-1], widths[1:], strict=True)
        )
        self.heads = nn.ModuleList(Head(n) for n in STAGES)

    def forward(self, images):
        """Return the features of all stages, of images (n, 3, h, w) in 0..1."""
        x = self.stem(images - 0.5).relu()
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class Layer(nn.Module):
    """A convolution of 3 x 3 over an image that is continued by its edges."""

    def __init__(self, n_in, n_out, stride=1, norm=False):
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, 3, stride=stride, bias=not norm)
        self.norm = nn.BatchNorm2d(n_out) if norm else nn.Identity()

    def forward(self, x):
        return self.norm(self.conv(_continue_edges(x)))


def _continue_edges(x):
    """Repeat the first and last rows and columns; keeps the layout in memory."""
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
        x = self.down(x).relu()
        for first, second in self.blocks:
            x = (x + second(first(x).relu())).relu()
        return x


class Head(nn.Module):
    """Two layers, pixel by pixel, to features of length 1."""

    def __init__(self, n_in):
        super().__init__()
        self.hidden = nn.Conv2d(n_in, n_in, 1)
        self.last = nn.Conv2d(n_in, HEAD, 1)

    def forward(self, x):
        return F.normalize(self.last(self.hidden(x).relu()), dim=1)


def fold_norms(network):
    """Return a network without batch norm that gives the same features."""
    folded = KnownNetwork(norm=False)
    pairs = zip(_layers(network), _layers(folded), strict=True)
    with torch.no_grad():
        for layer, plain in pairs:
            norm = layer.norm
            scale = norm.weight / (norm.running_var + norm.eps).sqrt()
            plain.conv.weight.copy_(layer.conv.weight * scale[:, None, None, None])
            plain.conv.bias.copy_(norm.bias - norm.running_mean * scale)
        folded.heads.load_state_dict(network.heads.state_dict())
    return folded


def _layers(network):
    return [x for x in network.modules() if isinstance(x, Layer)]


def save_network(network, path, page):
    """Write the weights of a trained network in half precision."""
    folded = fold_norms(network)
    torch.save({k: v.half() for k, v in folded.state_dict().items()}, path)
