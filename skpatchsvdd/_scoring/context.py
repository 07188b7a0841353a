"""What a call that fits hands down to its steps."""

from dataclasses import dataclass

import numpy as np

from skpatchsvdd._encoding import DenseSetting
from skpatchsvdd._images import ImageStack
from skpatchsvdd._options import Options
from skpatchsvdd._utils import Report


@dataclass(frozen=True)
class FitContext:
    """How a call of `fit`, `partial_fit` or `join` works, the same in all its steps.

    Attributes
    ----------
    setting : DenseSetting
        How images are encoded, and on which device all is computed.
    options : Options
        How to train, and how the bank is built and searched.
    rng : RandomState
        The source of all randomness.
    report : Report
        Says how far it has come.
    """

    setting: DenseSetting
    options: Options
    rng: np.random.RandomState
    report: Report

    @property
    def device(self):
        """Where to compute."""
        return self.setting.device


@dataclass(frozen=True)
class NormalImages:
    """The images that a bank is built of, and what is known of them.

    Attributes
    ----------
    stack : ImageStack
        The images.
    known : list of bytes
        Their digests.
    owners : ndarray of int of shape (n_images,)
        The owner, image or group, of each.
    shown : ndarray of int
        Indices of those that the encoder may be trained on.
    """

    stack: ImageStack
    known: list
    owners: np.ndarray
    shown: np.ndarray

    def __len__(self):
        return len(self.stack)

    @property
    def all_are_shown(self):
        """Whether none are set aside from training."""
        return len(self.shown) == len(self.stack)

    def shown_stack(self):
        """Return the images that the encoder may be trained on."""
        return self.stack if self.all_are_shown else self.stack.take(self.shown)
