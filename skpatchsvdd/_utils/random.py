"""Random numbers on a device, all from one generator."""

import numpy as np
import torch


def draw_seed(rng):
    """Draw the seed of another generator from a RandomState."""
    return int(rng.randint(np.iinfo(np.int32).max))


class Draws:
    """Draws tensors from a generator, for a device; None is that of the generator.

    A generator of the CPU draws the same for all devices.
    """

    def __init__(self, generator, device=None):
        self.generator = generator
        self.device = generator.device if device is None else device
        self._source = {"generator": generator, "device": generator.device}

    def integers(self, low, high, shape):
        """Draw integers from low to high - 1."""
        return torch.randint(low, high, shape, **self._source).to(self.device)

    def uniform(self, low, high, shape):
        """Draw floats between low and high."""
        x = torch.rand(shape, **self._source).to(self.device)
        return low + (high - low) * x

    def normal(self, scale, shape):
        """Draw floats from a normal distribution around 0."""
        return scale * torch.randn(shape, **self._source).to(self.device)
