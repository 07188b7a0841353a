"""What losses measure: distances of features, and directions between patches."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._utils import as_columns, expand, halve_squares

# Added to distances, so that their logarithms and gradients stay finite.
TINY = 1e-6
# The paper's classifier of L_SSL.
_HIDDEN, _SLOPE = 128, 0.1
# The eight neighbours of a 3 x 3 grid, as (down, right).
DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


@torch.no_grad()
def find_nearest(x, others, is_exact=False):
    """Return the index of the nearest of `others` for each row, (n,)."""
    with torch.autocast(x.device.type, enabled=False):
        # In a fifth of the time, or one that is hardly farther.
        if x.is_cuda and not is_exact:
            x, others = x.half(), others.half()
        products = expand(halve_squares(others), x, as_columns(others))
        return products.min(dim=1).indices  # `argmin` takes four times as long on CPUs


def distance(x, y, dim):
    """Euclidean distance with a finite gradient at 0."""
    return ((x - y).square().sum(dim=dim) + TINY**2).sqrt()


def look_up(table, index):
    """Rows of a table, (n, D), with a gradient that is reproducible to the last bit.

    On a CPU the gradient of an indexed read is summed by all threads in any order.
    """
    if table.device.type == "cpu":
        return F.embedding(index, table)
    return table[index]


def make_classifiers(encoder):
    """Return, for each scale, what tells directions from differences of features."""
    widths = (encoder.config[1], _HIDDEN, _HIDDEN, len(DIRECTIONS))
    classifiers = nn.ModuleList()
    for _ in encoder.patch_sizes:
        layers = []
        for n_in, n_out in itertools.pairwise(widths):
            layers += [_EmptyLinear(n_in, n_out), nn.LeakyReLU(_SLOPE)]
        classifiers.append(nn.Sequential(*layers[:-1]))
    return classifiers


class _EmptyLinear(nn.Linear):
    """A layer that leaves the global random state alone when it is made."""

    def reset_parameters(self):
        """Leave the weights as they are; `Objective.reset_parameters` follows."""
