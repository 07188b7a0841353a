"""What raised a false alarm, and should not any more, nor what is like it.

The far patches of a corrected image, in the regions that raised its alarm, do not join
the bank: they are a class of their own. A harmless mark looks a little different each
time, and by the standards of what is normal these are large differences. So what is
compared are means over windows, of patches that are far from normal ones, the farther
the more: of a mark they hardly depend on where its edges fall into patches. A patch is
harmless only if it is like one harmless patch in every respect:

- its features: the ratio d / |x - h| counts, by which the mean x of what is around a
  patch is nearer to a harmless one, h, than the patches are to normal ones. How large
  it is for what is of one sort, corrected images tell, each silenced by the others: see
  `corrections`;
- its colour: features of a bright and of a dark spot may be the same;
- its size, the number of far patches around;
- and all of that at every scale;
- its place: what is harmless is so about where it was seen. Marks that come anywhere
  are harmless anywhere, and must be more alike.

A patch that is counts as typical, and one that is a little less soon as it would
without.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._feedback.weighted import SearchedRows, WeightedRows

# How many times what is typical a patch must be away from normal ones.
FAR = 2.0
# Patches along each side of a window.
_WINDOW = 9
# The power by which what has a smaller ratio counts more. Chosen, as all of these
# numbers, on the figures of benchmarks/bench_feedback.py --corrections.
_POWER = 6
# The least ratio that counts, and that of images which too few others are like.
LEAST, _UNKNOWN = 1.2, 5.0
# Corrected images that tell the ratio: so many at least, and so many of those that came
# last, as the first were compared with few others. The one that is least like them does
# not count.
_N_LEAST, _N_NEWEST = 3, 5
# How much less new images may have, in logarithms: by this fraction, and as much again
# for what is harmless in one place.
_SLACK = 0.2
# How far what is harmless may be from where it was seen, in units of how far corrected
# images are from the nearest others, and in patches, at least.
_REACH, _LEAST_REACH = 2.0, 2.0
# How much the colour of what is harmless may differ, of 1.
_COLOR = 0.15
# How many times larger or smaller it may be.
_SIZE = 2.0


@dataclass(eq=False)
class Harmless(SearchedRows):
    """What is around harmless patches of corrected images, by scale.

    Parameters
    ----------
    rows : list of ndarray of shape (n_rows, n_features)
        Means over windows, see `average_far`, without positions; float32.
    images : list of ndarray of int of shape (n_rows,)
        The number of the corrected image that each row is from.
    cells : list of ndarray of int of shape (n_rows,)
        The number of the patch, on the grid, in the middle of the window.
    looks : list of ndarray of shape (n_rows, n_channels + 1)
        Mean colour and logarithm of the size of what is in the window; float32.
    known : list of bytes
        Digests of the corrected images.
    ratios : ndarray of shape (n_images,)
        The largest ratio from which on each is silenced by others; NaN where it is
        not.
    typical : list of float
        How far normal patches are from each other.
    grids : list of tuple of (rows, cols)
        The grids of patches.
    """

    rows: list
    images: list
    cells: list
    looks: list
    known: list
    ratios: np.ndarray
    typical: list
    grids: list

    def measure(self, features, colors, distances):
        """Return how far patches are from harmless ones, by scale.

        In units of how far they may be to count as typical, at the scale at which they
        are least alike; see `couple`.

        Parameters
        ----------
        features : dict of tensor of shape (n_images, rows, cols, n_features)
            By scale, float32, on any device; with positions or without.
        colors : dict of tensor of shape (n_images, rows, cols, n_channels)
            Mean colours of the patches.
        distances : dict of tensor of shape (n_images, rows, cols)
            Those to the nearest normal patches; no more than bounds of those that are
            not far.

        Returns
        -------
        quotients : dict of tensor of the same shapes
            Infinite where no patch around is far, or nothing is known.
        """
        quotients, is_around = {}, {}
        for i, x in features.items():
            x = x[..., : self.rows[i].shape[1]]
            around = average_far(x, colors[i], distances[i], self.typical[i])
            is_around[i] = around.far > 0
            quotients[i] = self._compare(i, around)
        return couple(quotients, is_around)

    def _compare(self, scale, around):
        quotients = torch.full_like(around.far, torch.inf)
        search, away = self._search_on(scale, quotients.device)
        if search is None:
            return quotients
        if quotients.device.type != "cpu" or torch.compiler.is_compiling():
            return search.compare(*around.flatten()).view(quotients.shape) * away
        for k, own in enumerate(around.far > 0):  # image by image, few patches of most
            if own.any():
                found = search.compare(*(x[k][own] for x in around))
                quotients[k][own] = found * away[own]
        return quotients

    def find_far(self, scale, distances):
        """Return which patches are far from normal ones."""
        return distances > FAR * self.typical[scale]

    def list_cells(self, scale, digest):
        """Return the numbers of the harmless patches of an image, by its digest."""
        if digest not in self.known:
            return np.zeros(0, dtype=np.int64)
        is_own = self.images[scale] == self.known.index(digest)
        return self.cells[scale][is_own].astype(np.int64)

    def _make_search(self, scale, device):
        if len(self.rows[scale]) == 0:
            return None, None
        away = self.find_away(scale)
        ratios = self._weigh(scale, float((away <= 1).float().mean()))
        return self.make_rows(scale, ratios, device), away.to(device)

    def make_rows(self, scale, ratios, device, left_out=-1):
        """Return the rows of a scale on a device, all but those of an image."""
        kept = self.images[scale] != left_out
        rows, looks = self.rows[scale][kept], self.looks[scale][kept]
        return HarmlessRows(rows, looks, ratios[kept], device)

    def _weigh(self, scale, part):
        """Return the ratio that counts for each row.

        Parameters
        ----------
        scale : int
            The index of a scale.
        part : float
            The fraction of an image where things are harmless.
        """
        is_known = ~np.isnan(self.ratios)
        ratios = np.full(len(self.ratios), _UNKNOWN, dtype=np.float32)
        if is_known.sum() >= _N_LEAST:
            ratio = np.sort(self.ratios[is_known][-_N_NEWEST:])[1]
            ratios[is_known] = ratio ** (1 - _SLACK * (2 - part))
        return torch.from_numpy(ratios[self.images[scale]])

    def find_away(self, scale, left_out=-1):
        """Return how far patches are from where harmless ones were seen, (rows, cols).

        In units of how far they may be, and at least 1.

        Parameters
        ----------
        scale : int
            The index of a scale.
        left_out : int
            An image that does not count.
        """
        kept = self.images[scale] != left_out
        grid, images = self.grids[scale], self.images[scale][kept]
        places = _place(self.cells[scale], grid)
        reach = self._find_reach(scale, places)[images]
        everywhere = _place(np.arange(grid[0] * grid[1]), grid)
        away = torch.full((len(everywhere),), torch.inf)
        for image in np.unique(images):
            own = torch.cdist(everywhere, places[kept][images == image])
            own = own.amin(dim=1) / float(reach[images == image][0])
            away = torch.minimum(away, own)
        return away.clamp(min=1).view(grid)

    def _find_reach(self, scale, places):
        """Return how far from where it was seen things of each image are harmless."""
        n, images = len(self.ratios), self.images[scale]
        # Of those that no others are like, as far as they reach themselves.
        reach, centres = np.zeros(n), torch.full((n, 2), torch.inf)
        for image in np.unique(images):
            own = places[images == image]
            centres[image] = own.mean(dim=0)
            reach[image] = (own - centres[image]).square().sum(dim=1).max().sqrt()
        apart = torch.cdist(centres, centres).nan_to_num(nan=torch.inf)
        nearest = apart.fill_diagonal_(torch.inf).amin(dim=1).numpy()
        is_known = ~np.isnan(self.ratios) & np.isfinite(nearest)
        if is_known.any():
            reach[is_known] = nearest[is_known][-_N_NEWEST:].max()
        return np.maximum(_REACH * reach, _LEAST_REACH / min(self.grids[scale]))


def _place(cells, grid):
    """Return where patches of a grid are, in fractions of its sides, (n, 2)."""
    places = np.stack(np.divmod(cells, grid[1]), axis=-1)
    return torch.from_numpy(((places + 0.5) / grid).astype(np.float32))


class Around(NamedTuple):
    """Means over the far patches in the window around each patch.

    Attributes
    ----------
    features : tensor of shape (..., n_features)
    looks : tensor of shape (..., n_channels + 1)
        Colour, and the logarithm of the number of far patches.
    far : tensor of shape (...)
        Of distances to the nearest normal patches; 0 where no patch is far.
    """

    features: torch.Tensor
    looks: torch.Tensor
    far: torch.Tensor

    def flatten(self):
        """Return the patches of all images as one list."""
        return Around(
            self.features.flatten(0, 2), self.looks.flatten(0, 2), self.far.flatten()
        )


def average_far(features, colors, distances, typical):
    """Return what is `Around` all patches, weighted by how far each is beyond far.

    Parameters
    ----------
    features : tensor of shape (n_images, rows, cols, n_features)
    colors : tensor of shape (n_images, rows, cols, n_channels)
    distances : tensor of shape (n_images, rows, cols)
        To the nearest normal patches.
    typical : float
        The distance that normal patches have.

    Returns
    -------
    around : Around
    """
    weights = (distances / typical - FAR).clamp(min=0)[..., None]
    parts = [x * weights for x in (features, colors, distances[..., None])]
    sums = torch.cat([*parts, weights, (weights > 0).float()], dim=-1)
    sums = F.avg_pool2d(sums.permute(0, 3, 1, 2), _WINDOW, 1, _WINDOW // 2)
    widths = [features.shape[-1], colors.shape[-1], 1, 1, 1]
    *means, weights, n_far = sums.permute(0, 2, 3, 1).split(widths, dim=-1)
    features, colors, far = (x / weights.clamp(min=1e-12) for x in means)
    sizes = n_far.clamp(min=1 / _WINDOW**2).log()
    looks = torch.cat([colors, sizes], dim=-1)
    return Around(features.contiguous(), looks, far[..., 0])


def couple(quotients, is_around):
    """Return quotients of patches as they are at the scale where they are largest.

    What is harmless is so at every scale: a dark spot may look, from afar, like a
    bright one. Where no patch around is far, a scale does not object.

    Parameters
    ----------
    quotients, is_around : dict of tensor of shape (n_images, rows, cols)
        By scale, how far patches are from harmless ones, and whether far patches are
        around them.

    Returns
    -------
    coupled : dict of tensor of the same shapes
        Infinite where no patch around is far.
    """
    objections = {i: torch.where(is_around[i], x, 0.0) for i, x in quotients.items()}
    coupled = {}
    for i, x in quotients.items():
        largest = objections[i]
        for other in objections.values():
            moved = F.interpolate(other[:, None], x.shape[1:], mode="nearest")[:, 0]
            largest = torch.maximum(largest, moved)
        coupled[i] = torch.where(is_around[i], largest, torch.inf)
    return coupled


class HarmlessRows:
    """Harmless patches of one scale on a device.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
    looks : ndarray of shape (n_rows, n_channels + 1)
        What patches are compared with, see `Harmless`.
    ratios : tensor of shape (n_rows,)
        The ratio that counts for each row.
    device : torch.device
        Where to compare.
    """

    def __init__(self, rows, looks, ratios, device):
        self._rows = WeightedRows(rows, device)
        self._looks = torch.from_numpy(looks).to(device)
        self._ratios = ratios.to(device).square()

    def compare(self, features, looks, far):
        """Return how far patches are from the harmless one they are most like, (n,).

        In units of how far they may be, in the respect in which they are least alike.
        """
        return self._rows.find_least(self._find_worst, features, looks, far).sqrt()

    def _find_worst(self, squares, looks, far):
        squares = squares * self._ratios / far.clamp(min=1e-12).square()[:, None]
        apart = (looks[:, None] - self._looks).square()  # (n, n_rows, n_channels + 1)
        colors = apart[..., :-1].sum(dim=-1) / _COLOR**2
        sizes = apart[..., -1] / np.log(_SIZE) ** 2
        return torch.maximum(torch.maximum(squares, colors), sizes)


def lower_distances(distances, quotients, typical):
    """Lower the distances of patches that are nearer to harmless ones.

    A larger distance stays as large at least, so that a bound of a distance becomes one
    of the lowered distance.

    Parameters
    ----------
    distances : tensor
        Those to the nearest normal patches.
    quotients : tensor of the same shape
        See `Harmless.measure`.
    typical : float
        The distance that normal patches have.
    """
    return torch.minimum(distances, typical * quotients.clamp(min=1).pow(_POWER))
