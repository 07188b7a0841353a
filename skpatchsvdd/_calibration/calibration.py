"""The one owner of the scores that thresholds and p-values come from."""

from dataclasses import dataclass, fields, replace

import numpy as np

from skpatchsvdd._calibration.groups import number_owners
from skpatchsvdd._calibration.threshold import (
    count_scores,
    p_values_from_scores,
    threshold_from_scores,
)
from skpatchsvdd._utils import Saved


@dataclass(frozen=True, eq=False)
class Calibration(Saved):
    """The scores of normal images, and which of them calibrate.

    `plain` and `raised` are kept as they were measured. The scores that count are
    computed from them: see `count_scores`.

    Parameters
    ----------
    plain : ndarray of shape (n_images,)
        Score of each image against a bank that does not hold it, without feedback.
    groups : ndarray of shape (n_images,) or None
        The group of each image. None makes each image its own group.
    calibrates : ndarray of bool of shape (n_images,)
        Whether thresholds and p-values come from an image: the encoder has seen no
        image of its group.
    rate : "auto" or float
        The rate of false alarms that the threshold is chosen by.
    raised : ndarray of shape (n_images,) or None
        Their scores as known defects raise them: no higher than `plain`. None if no
        defects are known.
    are_given : bool
        Whether the groups were given by the user; otherwise they are twins that were
        found.
    held_out : Calibration or None
        That of images which the bank does not hold, and which alone calibrate.
    """

    plain: np.ndarray
    groups: np.ndarray | None
    calibrates: np.ndarray
    rate: float | str = "auto"
    raised: np.ndarray | None = None
    are_given: bool = True
    held_out: "Calibration | None" = None

    def __post_init__(self):
        parts = (self.plain, self.calibrates, self.groups, self.raised)
        lengths = {len(x) for x in parts if x is not None}
        if len(lengths) > 1:
            raise ValueError(
                "plain, groups, calibrates and raised must have one length, got "
                f"{sorted(lengths)}"
            )

    def __len__(self):
        return len(self.plain)

    @classmethod
    def saved_names(cls):
        """Return the names of what is saved: all that it is made of."""
        return tuple(x.name for x in fields(cls))

    @property
    def owners(self):
        """The number of each image's group, ndarray of int; without groups, its own."""
        if self.groups is None:
            return np.arange(len(self))
        return number_owners(self.groups)

    @property
    def levels(self):
        """The level below which known defects raise scores, (n_images + 1,).

        For images that are known it is minus the threshold of plain scores, the k-th
        highest of n; the last one, that of new images, is the next one, k + 1. The
        (k + 1)-th of all n + 1, with a new image, is between both, and does not depend
        on which of them is new: by it, the scores that count would be exchangeable. So
        new images count no more than that, known ones no less, and the rate of false
        alarms holds.
        """
        levels = np.full(len(self) + 1, -self.source._threshold())
        levels[-1] = -self.source._threshold(n_more=1)
        return levels

    @property
    def scores(self):
        """The scores that count: those of feedback where it raises them."""
        if self.raised is None:
            return self.plain
        return count_scores(self.plain, self.raised, self.levels[:-1])

    @property
    def source(self):
        """The calibration that thresholds and p-values come from."""
        return self if self.held_out is None else self.held_out

    @property
    def used_scores(self):
        """The scores that calibrate."""
        return self.source.scores[self.source.calibrates]

    @property
    def used_groups(self):
        """The groups of the images that calibrate, or None."""
        source = self.source
        return None if source.groups is None else source.groups[source.calibrates]

    def _threshold(self, n_more=0):
        """Return the threshold of plain scores, or a later one of them."""
        plain, groups = self.plain[self.calibrates], self.groups
        groups = None if groups is None else groups[self.calibrates]
        return threshold_from_scores(plain, self.rate, groups, None, n_more)

    def offset(self, rate=None, name="false_alarm_rate"):
        """Return the score below which an image is called abnormal.

        Parameters
        ----------
        rate : "auto" or float, default=None
            See `threshold_from_scores`; None is that of the calibration.
        name : str or None
            Name of the parameter in warnings; without one, there is none.
        """
        rate = self.rate if rate is None else rate
        return threshold_from_scores(self.used_scores, rate, self.used_groups, name)

    def p_values(self, scores):
        """Return how unusual images with these scores would be among normal ones."""
        return p_values_from_scores(self.used_scores, scores, self.used_groups)

    def change(self, **changes):
        """Return one with other values of some parameters."""
        return replace(self, **changes)

    def change_rate(self, rate):
        """Return one with another rate of false alarms."""
        held_out = self.held_out
        if held_out is not None:
            held_out = held_out.change(rate=rate)
        return self.change(rate=rate, held_out=held_out)

    def extend(self, plain, groups=None, is_seen=False):
        """Return the calibration with more images, without what raises their scores.

        Parameters
        ----------
        plain : ndarray of shape (n_new,)
            Their scores.
        groups : ndarray of shape (n_new,) or None
            Their groups; None if, and only if, the former images have none.
        is_seen : bool or ndarray of bool of shape (n_new,)
            Whether the encoder was trained on images of their groups: these do not
            calibrate.
        """
        calibrates = np.ones(len(plain), dtype=bool) & ~np.asarray(is_seen)
        if self.groups is not None:
            groups = np.concatenate([self.groups, groups])
        return self.change(
            plain=np.concatenate([self.plain, plain]),
            groups=groups,
            calibrates=np.concatenate([self.calibrates, calibrates]),
            raised=None,
        )

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
        return self.change(
            plain=np.concatenate([self.plain, *(x.plain[i] for x, i in pairs)]),
            groups=groups,
            calibrates=np.concatenate(
                [self.calibrates, *(x.calibrates[i] for x, i in pairs)]
            ),
            raised=None,
        )
