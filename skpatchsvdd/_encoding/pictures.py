"""Images at half their resolution, in eight bits a value, as the comparison sees them.

So small that they may be kept beside the patches of training images.
"""

import torch
import torch.nn.functional as F

# Means of four bytes often lie half-way between two: these are rounded up, on any
# machine.
_UP = 0.01


def keep_pictures(images):
    """Return what is kept of images in 0..1, uint8 (n, 1 or 3, height / 2, width / 2).

    Two channels become one, their mean, and more than three become three.
    """
    n_channels = images.shape[1]
    if n_channels not in (1, 3):
        parts = images.tensor_split(3 if n_channels > 3 else 1, dim=1)
        images = torch.cat([x.mean(dim=1, keepdim=True) for x in parts], dim=1)
    x = F.avg_pool2d(images, 2, ceil_mode=True, count_include_pad=False)
    return x.mul(255).add_(_UP).round_().clamp_(0, 255).to(torch.uint8)


def show_pictures(kept):
    """Return kept pictures as the network takes them, (n, 3, rows, cols) in 0..1."""
    return kept.float().div_(255).expand(-1, 3, -1, -1)
