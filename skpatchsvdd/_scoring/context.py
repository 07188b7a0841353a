"""What a call that fits hands down to its steps."""

from dataclasses import dataclass

import numpy as np
from torch import nn

from skpatchsvdd._encoding import DenseSetting
from skpatchsvdd._images import ImageStack
from skpatchsvdd._options import Options
from skpatchsvdd._utils import Report


@dataclass(frozen=True)
class FitContext:
    """How a call of `fit`, `partial_fit` or `join` works, the same in all its steps."""

    setting: DenseSetting  # how images are encoded, and on which device
    options: Options  # how to train, and how the bank is built and searched
    rng: np.random.RandomState  # the source of all randomness
    report: Report  # says how far it has come
    encoder: nn.Module | None = None  # as trained, once it is

    @property
    def device(self):
        """Where to compute."""
        return self.setting.device

    def load(self, fitted):
        """Return a `FittedBank` on the device, a `DeviceBank`."""
        return fitted.on_device(self.encoder, self.device)


@dataclass(frozen=True)
class NormalImages:
    """The images that a bank is built of, and what is known of them."""

    stack: ImageStack
    known: list  # their digests, bytes
    owners: np.ndarray  # the number of the owner, image or group, of each
    shown: np.ndarray  # indices of those that the encoder may be trained on

    def __len__(self):
        return len(self.stack)

    @property
    def all_are_shown(self):
        """Whether none are set aside from training."""
        return len(self.shown) == len(self.stack)

    def shown_stack(self):
        """Return the images that the encoder may be trained on."""
        return self.stack if self.all_are_shown else self.stack.take(self.shown)
