"""The weights of the comparison that come with the package."""

import functools
from importlib.resources import files

import numpy as np
import torch

from skpatchsvdd._comparison.network import Comparison
from skpatchsvdd._encoding import read_known

# How they were made: docs/user_guide/formulas.rst.
WEIGHTS = "comparison.safetensors"


def read_comparison(path=None):
    """Return the network and the page about it, by default those of the package."""
    file = files("skpatchsvdd._comparison").joinpath(WEIGHTS) if path is None else path
    arrays, page = read_known(file)
    network = Comparison()
    weights = {k: torch.from_numpy(v.astype(np.float32)) for k, v in arrays.items()}
    network.load_state_dict(weights)
    return network.requires_grad_(False).eval(), page


@functools.lru_cache(maxsize=4)
def load_shipped(device):
    """Return the network of the package on a device, laid out as images are."""
    network, _ = read_comparison()
    return network.to(device, memory_format=torch.channels_last)
