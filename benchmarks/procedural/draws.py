"""Random numbers for procedural images, from one generator on its device."""

import math

import torch


def uniform(generator, shape, low=0.0, high=1.0):
    """Draw numbers evenly between two bounds."""
    x = torch.rand(shape, generator=generator, device=generator.device)
    return low + (high - low) * x


def log_uniform(generator, shape, low, high):
    """Draw numbers whose logarithms lie evenly between those of two bounds."""
    return uniform(generator, shape, math.log(low), math.log(high)).exp()


def normal(generator, shape):
    """Draw numbers from the standard normal distribution."""
    return torch.randn(shape, generator=generator, device=generator.device)


def choose(generator, shape, weights):
    """Draw indices with probabilities in proportion to weights."""
    edges = torch.tensor(weights, device=generator.device).cumsum(0)
    x = uniform(generator, shape, 0.0, float(edges[-1]))
    return torch.bucketize(x, edges[:-1].contiguous(), right=True)


def happens(generator, shape, probability):
    """Draw booleans that are true with a probability."""
    return uniform(generator, shape) < probability


def colors(generator, shape):
    """Draw colours, (..., 3), many of them grey or nearly so."""
    color = uniform(generator, (*shape, 3), 0.02, 0.98)
    grey = color[..., :1]
    saturation = uniform(generator, (*shape, 1)) ** 2
    return grey + saturation * (color - grey)
