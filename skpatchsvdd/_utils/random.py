"""Random numbers on a device, all from one generator."""

import numpy as np
import torch


def draw_seed(rng):
    """Draw the seed of another generator from a RandomState."""
    return int(rng.randint(np.iinfo(np.int32).max))


class Draws:
    """Draws tensors from a generator, on the generator's device.

    Parameters
    ----------
    generator : torch.Generator
        The only source of randomness.
    """

    def __init__(self, generator):
        self.generator = generator
        self.device = generator.device

    def integers(self, low, high, shape):
        """Draw integers from low to high - 1."""
        return torch.randint(
            low, high, shape, generator=self.generator, device=self.device
        )

    def uniform(self, low, high, shape):
        """Draw floats between low and high."""
        x = torch.rand(shape, generator=self.generator, device=self.device)
        return low + (high - low) * x

    def normal(self, scale, shape):
        """Draw floats from a normal distribution around 0."""
        x = torch.randn(shape, generator=self.generator, device=self.device)
        return scale * x
