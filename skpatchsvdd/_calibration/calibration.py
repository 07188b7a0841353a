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
    """

    # Score of each image against a bank that does not hold it, without feedback.
    plain: np.ndarray
    groups: np.ndarray | None  # None makes each image its own group
    # Whether thresholds and p-values come from an image: the encoder has seen no image
    # of its group.
    calibrates: np.ndarray
    rate: float | str = "auto"  # that of false alarms, by which thresholds are chosen
    # The scores as known defects raise them, no higher than `plain`. None without any.
    raised: np.ndarray | None = None
    are_given: bool = True  # whether by the user; otherwise groups are twins
    # That of images which the bank does not hold, and which alone calibrate.
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

        At another rate, if one is given. `name` is that of the parameter in warnings;
        without one, there is none.
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

        They have groups if, and only if, the former images do. Those of groups that the
        encoder was trained on, `is_seen`, do not calibrate.
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

        `added` holds, for each of the others, the indices of the images that join.
        """
        joined = self
        for other, new in zip(others, added, strict=True):
            groups = None if other.groups is None else other.groups[new]
            joined = joined.extend(other.plain[new], groups, ~other.calibrates[new])
        return joined
