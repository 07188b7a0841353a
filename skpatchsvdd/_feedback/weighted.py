"""Rows that people have named, on devices, and the nearest of them."""

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


class WeightedRows:
    """Rows on a device, from which distances are measured.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Features, float32.
    device : torch.device
        Where to search.
    """

    def __init__(self, rows, device):
        rows = as_tensor(rows).to(device)
        self._origin = rows.mean(dim=0)
        self._columns = as_columns(rows - self._origin)
        self._half_squares = halve_squares(rows - self._origin)

    def square(self, features):
        """Return the squared distances of patches to all rows, (n, n_rows).

        As exact as an expanded square is: who needs to tell copies apart, is wrong
        here.
        """
        centered = features - self._origin
        halves = expand(self._half_squares, centered, self._columns)
        return 2 * (halves + halve_squares(centered)[:, None]).clamp(min=0)

    def find_least(self, measure, *parts):
        """Return the least of what is measured between patches and rows, (n,).

        Parameters
        ----------
        measure : callable
            ``measure(squares, *parts)`` gives what counts, (n, n_rows), from squared
            distances.
        *parts : tensor of shape (n, ...)
            Features of patches, and whatever else belongs to each of them.
        """
        size = max(PRODUCTS // len(self._half_squares), 1)
        chunks = zip(*(x.split(size) for x in parts), strict=True)
        found = [measure(self.square(x), *more).amin(dim=1) for x, *more in chunks]
        return torch.cat(found)
