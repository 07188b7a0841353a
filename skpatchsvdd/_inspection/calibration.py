"""The scores of normal images that thresholds and p-values come from, as one value."""

from dataclasses import dataclass, replace

import numpy as np

from skpatchsvdd._inspection.groups import number_owners
from skpatchsvdd._inspection.threshold import (
    p_values_from_scores,
    threshold_from_scores,
)


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of all training images, and which of them calibrate.

    Parameters
    ----------
    scores : ndarray of shape (n_images,)
        Score of each training image against a bank that does not hold it.
    groups : ndarray of shape (n_images,) or None
        The group of each image. None makes each image its own group.
    calibrates : ndarray of bool of shape (n_images,)
        Whether thresholds and p-values come from an image: the encoder has seen no
        image of its group, and it was not chosen for its score.
    """

    scores: np.ndarray
    groups: np.ndarray | None
    calibrates: np.ndarray

    def __post_init__(self):
        lengths = {len(self.scores), len(self.calibrates)}
        if self.groups is not None:
            lengths.add(len(self.groups))
        if len(lengths) > 1:
            raise ValueError(
                "scores, groups and calibrates must have one length, got "
                f"{sorted(lengths)}"
            )

    def __len__(self):
        return len(self.scores)

    @property
    def owners(self):
        """The number of each image's group, ndarray of int; without groups, its own."""
        if self.groups is None:
            return np.arange(len(self))
        return number_owners(self.groups)

    def owners_with(self, n_new, groups=None):
        """Return the owners of the images when `n_new` more, of some groups, join."""
        if self.groups is None:
            return np.arange(len(self) + n_new)
        return number_owners(np.concatenate([self.groups, groups]))

    @property
    def used_scores(self):
        """The scores that calibrate."""
        return self.scores[self.calibrates]

    @property
    def used_groups(self):
        """The groups of the images that calibrate, or None."""
        return None if self.groups is None else self.groups[self.calibrates]

    def offset(self, contamination, name="contamination"):
        """Return the score below which an image is called abnormal.

        The parameters are those of `threshold_from_scores`.
        """
        return threshold_from_scores(
            self.used_scores, contamination, self.used_groups, name
        )

    def p_values(self, scores):
        """Return how unusual images with these scores would be among normal ones."""
        return p_values_from_scores(self.used_scores, scores, self.used_groups)

    def extend(self, scores, groups=None, corrections=False):
        """Return the calibration with more images, that the encoder was not trained on.

        A group that does not calibrate, because the encoder has seen it, stays so with
        its new images.

        Parameters
        ----------
        scores : ndarray of shape (n_new,)
            Their scores.
        groups : ndarray of shape (n_new,) or None
            Their groups; None if, and only if, the former images have none.
        corrections : bool
            Whether they were chosen for their scores: those do not calibrate.
        """
        calibrates = np.ones(len(scores), dtype=bool)
        if self.groups is not None:
            n_former, groups = len(self), np.concatenate([self.groups, groups])
            owners = number_owners(groups)
            # In a group that calibrates, a correction may be one that does not.
            former = owners[:n_former]
            seen = np.setdiff1d(former, former[self.calibrates])
            calibrates = ~np.isin(owners[n_former:], seen)
        if corrections:
            calibrates[:] = False
        return Calibration(
            np.concatenate([self.scores, scores]),
            groups,
            np.concatenate([self.calibrates, calibrates]),
        )

    def with_scores(self, scores):
        """Return the calibration with other scores of the same images."""
        return replace(self, scores=scores)

    def join(self, others, added):
        """Return the calibration with images that were added to copies of it.

        Parameters
        ----------
        others : list of Calibration
            Those of the copies.
        added : list of ndarray of int
            For each copy, the indices of the images that join.
        """
        pairs = list(zip(others, added, strict=True))
        groups = None
        if self.groups is not None:
            groups = np.concatenate([self.groups, *(x.groups[i] for x, i in pairs)])
        return Calibration(
            np.concatenate([self.scores, *(x.scores[i] for x, i in pairs)]),
            groups,
            np.concatenate([self.calibrates, *(x.calibrates[i] for x, i in pairs)]),
        )
