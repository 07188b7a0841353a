"""The nearest of a few rows, each of which measures distances in a unit of its own."""

import torch

from skpatchsvdd._bank import as_tensor
from skpatchsvdd._utils import as_columns, expand, halve_squares

# Products held at a time, (patches, rows).
_PRODUCTS = 2**24


class WeightedSearch:
    """Rows on a device.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Features, float32.
    device : torch.device
        Where to search.
    """

    def __init__(self, rows, device):
        self._rows = as_tensor(rows).to(device)
        self._origin = self._rows.mean(dim=0)
        centered = self._rows - self._origin
        self._columns = as_columns(centered)
        self._half_squares = halve_squares(centered)

    def find_nearest(self, features, weights):
        """Return the smallest product of a row's distance and weight, (n,).

        Parameters
        ----------
        features : tensor of shape (n, n_features)
            float32, on the device.
        weights : tensor of shape (n_rows,)
            Those of the rows.
        """
        size = max(_PRODUCTS // len(weights), 1)
        squares = weights.square()
        parts = [self._find_some(x, weights, squares) for x in features.split(size)]
        return torch.cat(parts)

    def _find_some(self, features, weights, squares):
        centered = features - self._origin
        halves = expand(self._half_squares, centered, self._columns)
        halves = (halves + halve_squares(centered)[:, None]).clamp(min=0)
        nearest = (halves * squares).argmin(dim=1)
        # By the difference: an expanded square of what is near is a rounding error.
        away = (features - self._rows[nearest]).square().sum(dim=1).sqrt()
        return away * weights[nearest]
