"""The nearest of a few rows, each of which measures distances in a unit of its own."""

from dataclasses import dataclass, field, fields

import torch

from skpatchsvdd._bank import as_tensor
from skpatchsvdd._utils import Saved, as_columns, expand, halve_squares

# Products held at a time, (patches, rows).
PRODUCTS = 2**24


@dataclass(eq=False)
class SearchedRows(Saved):
    """Base of what holds rows of every scale, and searches them on devices.

    A subclass is a dataclass, whose fields are saved, and has `_make_search`, with
    which ``_make_search(scale, device)`` gives what is remembered for as long as the
    object lives.
    """

    _on_device: dict = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def saved_names(cls):
        """Return the names of what is saved: all that it is made of."""
        return tuple(x.name for x in fields(cls) if x.init)

    def _unsaved(self):
        return {"_on_device": {}}

    def _search_on(self, scale, device):
        key = scale, device
        if key not in self._on_device:
            self._on_device[key] = self._make_search(scale, device)
        return self._on_device[key]


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
        size = max(PRODUCTS // len(weights), 1)
        squares = weights.square()
        parts = [self._find_some(x, weights, squares) for x in features.split(size)]
        return torch.cat(parts)

    def search_images(self, features, weights):
        """Return what `find_nearest` does for the patches of images.

        Parameters
        ----------
        features : tensor of shape (n_images, n_patches, n_features)
            float32, on the device.
        weights : list of tensor of shape (n_rows,)
            For each image, those of the rows.

        Returns
        -------
        nearest : tensor of shape (n_images, n_patches)
        """
        is_shared = all(x is weights[0] for x in weights)
        if features.device.type != "cpu" and is_shared:
            flat = self.find_nearest(features.flatten(0, 1), weights[0])
            return flat.view(features.shape[:2])
        # Image by image, so that no other image matters.
        pairs = zip(features, weights, strict=True)
        return torch.stack([self.find_nearest(*pair) for pair in pairs])

    def _find_some(self, features, weights, squares):
        centered = features - self._origin
        halves = expand(self._half_squares, centered, self._columns)
        halves = (halves + halve_squares(centered)[:, None]).clamp(min=0)
        nearest = (halves * squares).argmin(dim=1)
        # By the difference: an expanded square of what is near is a rounding error.
        away = (features - self._rows[nearest]).square().sum(dim=1).sqrt()
        return away * weights[nearest]
