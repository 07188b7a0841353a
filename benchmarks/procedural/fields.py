"""Fields of one value a pixel that textures are made of: noise, lattices, cells."""

import math

import torch

from procedural.draws import normal, uniform

_TINY = 1e-6
# Cosines whose sum bends the lines of a lattice.
_N_BENDS = 3


def draw_noise(generator, size, exponent, center, width, turn, stretch):
    """Draw noise of a spectrum.

    Parameters
    ----------
    generator : torch.Generator
        Draws the phases.
    size : int
        Pixels along both axes.
    exponent, center, width, turn, stretch : tensors of shape (n,)
        A spectrum each: it falls with a power of the frequency, is limited to a band
        around `center`, in cycles a pixel, of a relative `width`, and is stretched
        along a direction.

    Returns
    -------
    fields : tensor of shape (n, size, size)
        Of mean 0 and standard deviation 1.
    """
    device = exponent.device
    down = torch.fft.fftfreq(size, device=device)[:, None]
    across = torch.fft.rfftfreq(size, device=device)[None]
    cos, sin = turn.cos()[:, None, None], turn.sin()[:, None, None]
    along = (cos * across + sin * down) * stretch[:, None, None]
    beside = cos * down - sin * across
    k = (along**2 + beside**2).sqrt() + _TINY
    logs = k.log()
    band = ((logs - center.log()[:, None, None]) / width[:, None, None]) ** 2
    spectrum = torch.exp(-0.5 * band - exponent[:, None, None] * logs)
    spectrum[:, 0, 0] = 0
    waves = torch.fft.rfft2(normal(generator, (len(exponent), size, size)))
    return standardize(torch.fft.irfft2(waves * spectrum, s=(size, size)))


def draw_lattice(generator, size, period, turn, skew, weights, bend):
    """Draw a lattice, such as a weave, a mesh or stripes, at a random phase.

    Parameters
    ----------
    generator : torch.Generator
        Draws phases and bends.
    size : int
        Pixels along both axes.
    period, turn, skew, bend : tensors of shape (n,)
        Pixels from one line to the next, direction, angle between the two families of
        lines, and how many pixels lines are bent.
    weights : tensor of shape (n, 4)
        Of both families, and of their sum and difference.

    Returns
    -------
    fields : tensor of shape (n, size, size)
        Of mean 0 and standard deviation 1.
    """
    n, device = len(period), period.device
    y, x = grid(size, device)
    frequency = uniform(generator, (2, n, _N_BENDS, 1, 1), -3.0, 3.0) / size
    phase = uniform(generator, (n, _N_BENDS, 1, 1), 0.0, 2 * math.pi)
    waves = 2 * math.pi * (frequency[0] * x + frequency[1] * y) + phase
    bends = waves.cos().sum(1) * bend[:, None, None]
    phases = uniform(generator, (2, n, 1, 1), 0.0, 2 * math.pi)
    lines = []
    for angle, shift in zip((turn, turn + skew), phases, strict=True):
        across = x * angle.cos()[:, None, None] + y * angle.sin()[:, None, None]
        wave = 2 * math.pi / period[:, None, None]
        lines.append(wave * (across + bends) + shift)
    first, second = lines
    terms = (first, second, first + second, first - second)
    pairs = zip(terms, weights.T[:, :, None, None], strict=True)
    return standardize(sum(term.cos() * weight for term, weight in pairs))


def draw_cells(generator, size, spacing, walls):
    """Draw cells, such as grains, around random points.

    Parameters
    ----------
    generator : torch.Generator
        Draws the points.
    size : int
        Pixels along both axes.
    spacing : tensor of shape (n,)
        Pixels from one point to the next.
    walls : tensor of shape (n,)
        From 0, the distance to the nearest point, to 1, that to the nearest wall.

    Returns
    -------
    fields : tensor of shape (n, size, size)
        Of mean 0 and standard deviation 1.
    """
    y, x = grid(size, spacing.device)
    seed = uniform(generator, (len(spacing), 1, 1), 0.0, 100.0)
    shift = uniform(generator, (2, len(spacing), 1, 1), 0.0, 1.0)
    x = x / spacing[:, None, None] + shift[0]
    y = y / spacing[:, None, None] + shift[1]
    column, row = x.floor(), y.floor()
    first = torch.full_like(x, torch.inf)
    second = first.clone()
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            u, v = _scatter(column + i, row + j, seed)
            away = ((column + i + u - x) ** 2 + (row + j + v - y) ** 2).sqrt()
            second = torch.minimum(second, torch.maximum(first, away))
            first = torch.minimum(first, away)
    walls = walls[:, None, None]
    return standardize((1 - walls) * first + walls * (second - first))


def _scatter(column, row, seed):
    """Return a point of a cell, by numbers that look random."""
    numbers = []
    for a, b in ((12.9898, 78.233), (39.3468, 11.135)):
        waves = torch.sin(column * a + row * b + seed) * 43758.5453
        numbers.append(waves - waves.floor())
    return numbers


def grid(size, device):
    """Return the rows and columns of pixels, (size, 1) and (1, size)."""
    numbers = torch.arange(size, device=device, dtype=torch.float32)
    return numbers[:, None], numbers[None]


def standardize(fields):
    """Bring each field to mean 0 and standard deviation 1."""
    fields = fields - fields.mean(dim=(-2, -1), keepdim=True)
    return fields / (fields.std(dim=(-2, -1), keepdim=True) + _TINY)
