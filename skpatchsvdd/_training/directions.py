"""The task of L_SSL: in which of eight directions a patch lies from another."""

import itertools

from torch import nn

# The paper's classifier.
_HIDDEN, _SLOPE = 128, 0.1
# The eight neighbours of a 3 x 3 grid, as (down, right).
DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


def make_classifiers(encoder):
    """Return a classifier of the difference of two features for each scale."""
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
        """Leave the weights as they are; the function of this name follows."""
