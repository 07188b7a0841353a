"""The main axes of features, by which long ones become short."""

import torch

# Numbers that features are brought to, at most: few enough to search.
LENGTH = 128
# How much axes are evened out: each is divided by the fourth root of its variance, half
# of a whitening, and of this fraction of the mean variance, against axes of noise.
_POWER, _SHRINKAGE = 0.25, 0.02


class AxesSum:
    """Sums over features, of which main axes are made."""

    def __init__(self):
        self._n = 0
        self._mean = self._square = None

    def add(self, features):
        """Add features, (..., D); sums are those of double precision, on the CPU."""
        x = features.reshape(-1, features.shape[-1]).double()
        first, second = x.sum(dim=0).cpu(), (x.T @ x).cpu()
        if self._n == 0:
            self._mean, self._square = first, second
        else:
            self._mean, self._square = self._mean + first, self._square + second
        self._n += len(x)

    def result(self):
        """Return mean and axes, (D,) and (D, length), as arrays of float32."""
        mean = self._mean / self._n
        variances, axes = torch.linalg.eigh(self._square / self._n - mean.outer(mean))
        variances, axes = variances[-LENGTH:].clamp(min=0), axes[:, -LENGTH:]
        evened = variances + _SHRINKAGE * variances.mean()
        axes = axes / evened.clamp(min=torch.finfo(torch.float32).tiny) ** _POWER
        return mean.float().numpy(), axes.float().numpy()
