"""What raised a false alarm, and should not any more, nor what is like it.

The far patches of a corrected image, in the regions that raised its alarm, do not join
the bank: they are a class of their own. A harmless mark looks a little different each
time, and by the standards of what is normal these are large differences. So what is
compared are means over windows, of patches that are far from normal ones, the farther
the more: of a mark they hardly depend on where its edges fall into patches. It is the
ratio d / |x - h| that counts, by which the mean x of what is around a patch is nearer
to a harmless one, h, than the patches are to normal ones. How large it is for what is
of one sort, corrected images tell, each silenced by the others: see `corrections`. A
patch with that ratio counts as typical, and one with less soon as it would without.

What is harmless is so about where it was seen. Marks that come anywhere are harmless
anywhere, and must be more alike.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._inspection.weighted import SearchedRows, WeightedSearch

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
    known: list
    ratios: np.ndarray
    typical: list
    grids: list

    def measure(self, scale, features, distances):
        """Return how far patches are from harmless ones.

        In units of the distance from which on they count as typical.

        Parameters
        ----------
        scale : int
            The index of a scale.
        features : tensor of shape (n_images, rows, cols, n_features)
            float32, on any device; with positions or without.
        distances : tensor of shape (n_images, rows, cols)
            Those to the nearest normal patches; no more than bounds of those that are
            not far.

        Returns
        -------
        quotients : tensor of the same shape
            Infinite where no patch around is far, or nothing is known.
        """
        quotients = torch.full_like(distances, torch.inf)
        search, weights, away = self._search_on(scale, features.device)
        if search is None:
            return quotients
        features = features[..., : self.rows[scale].shape[1]]
        means, far = average_far(features, distances, self.typical[scale])
        if features.device.type != "cpu" or torch.compiler.is_compiling():
            near = search.search_images(means.flatten(1, 2), [weights] * len(means))
            found = near.view(distances.shape) * away / far.clamp(min=1e-12)
            return torch.where(far > 0, found, quotients)
        for k, own in enumerate(far > 0):  # image by image, few patches of most
            if own.any():
                near = search.find_nearest(means[k][own], weights)
                quotients[k][own] = near * away[own] / far[k][own]
        return quotients

    def find_far(self, scale, distances):
        """Return which patches are far from normal ones."""
        return distances > FAR * self.typical[scale]

    def list_cells(self, scale, image):
        """Return the numbers of the harmless patches of a corrected image."""
        return self.cells[scale][self.images[scale] == image]

    def _make_search(self, scale, device):
        if len(self.rows[scale]) == 0:
            return None, None, None
        away = self.find_away(scale)
        weights = self._weigh(scale, float((away <= 1).float().mean()))
        search = WeightedSearch(self.rows[scale], device)
        return search, weights.to(device), away.to(device)

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


def average_far(features, distances, typical):
    """Return means over the far patches in the window around each patch.

    Weighted by how much farther they are than what counts as far.

    Parameters
    ----------
    features : tensor of shape (n_images, rows, cols, n_features)
    distances : tensor of shape (n_images, rows, cols)
        To the nearest normal patches.
    typical : float
        The distance that normal patches have.

    Returns
    -------
    means : tensor of shape (n_images, rows, cols, n_features)
        Of features; 0 where no patch is far.
    far : tensor of shape (n_images, rows, cols)
        Of distances; 0 where no patch is far.
    """
    weights = (distances / typical - FAR).clamp(min=0)[..., None]
    parts = (features * weights, distances[..., None] * weights, weights)
    sums = torch.cat(parts, dim=-1).permute(0, 3, 1, 2)
    sums = F.avg_pool2d(sums, _WINDOW, 1, _WINDOW // 2).permute(0, 2, 3, 1)
    means = sums[..., :-1] / sums[..., -1:].clamp(min=1e-12)
    return means[..., :-1].contiguous(), means[..., -1]


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
