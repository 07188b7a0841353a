"""The one owner of the scores that thresholds and p-values come from."""

from dataclasses import dataclass

import numpy as np

from skpatchsvdd._calibration.groups import append_labels, number_owners
from skpatchsvdd._calibration.threshold import (
    bound_rate,
    count_scores,
    p_values_from_scores,
    threshold_from_scores,
    tune_threshold,
)
from skpatchsvdd._scoring import EncodedImages
from skpatchsvdd._utils import Saved


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration(Saved):
    """The scores of normal images, and which of them calibrate.

    The scores that count are computed from `plain` and `raised`: see `count_scores`.
    """

    # Score of each image against a bank that does not hold it, without feedback.
    plain: np.ndarray
    # Whether thresholds and p-values come from an image: the encoder has seen no image
    # of its group.
    calibrates: np.ndarray
    # The number of each image's group, which nobody is shown, and the user's label of
    # it: None where images have none of their own.
    owners: np.ndarray
    groups: np.ndarray | None = None
    rate: float | str = "auto"  # that of false alarms, by which thresholds are chosen
    # The scores as known defects raise them, no higher than `plain`. None without any.
    raised: np.ndarray | None = None
    images: EncodedImages | None = None  # those that the bank does not hold
    # The calibration of these, which alone counts.
    held_out: "Calibration | None" = None
    fixed: float | None = None  # the threshold that people chose, instead of `rate`

    @classmethod
    def start(cls, normal, plain, rate):
        """Return the calibration of `NormalImages` with these scores."""
        return cls(
            plain=plain,
            calibrates=normal.calibrates,
            owners=normal.owners,
            groups=normal.groups,
            rate=rate,
        )

    def __len__(self):
        return len(self.plain)

    @property
    def are_grouped(self):
        """Whether images belong together, by the user's word or as twins."""
        return self.groups is not None or len(np.unique(self.owners)) < len(self)

    @property
    def twins(self):
        """A label of each image, the same for twins; None if there are none."""
        return self.owners if self.groups is None and self.are_grouped else None

    @property
    def levels(self):
        """The level below which known defects raise scores, (n_images + 1,).

        Of known images it is minus the threshold of plain scores, the k-th highest of
        n; of new ones, the last one, it is the next, k + 1. The (k + 1)-th of all n + 1
        lies between both, and does not depend on which image is new: with it, scores
        would be exchangeable. So new images count no more than that, known ones no
        less, and the rate of false alarms holds.
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
    def used_owners(self):
        """The numbers of the groups of the images that calibrate, or None."""
        source = self.source
        return source.owners[source.calibrates] if source.are_grouped else None

    @property
    def used_groups(self):
        """The labels of their groups, or of twins, or None."""
        source = self.source
        labels = source.twins if source.groups is None else source.groups
        return None if labels is None else labels[source.calibrates]

    def _threshold(self, n_more=0):
        """Return the threshold of plain scores, or a later one of them."""
        plain = self.plain[self.calibrates]
        return threshold_from_scores(plain, self.rate, self.used_owners, None, n_more)

    def offset(self, rate=None, name="false_alarm_rate"):
        """Return the threshold: that of a rate, if one is given, or the fixed one.

        `name` is that of the parameter in warnings; without one, there is none.
        """
        if rate is None and self.fixed is not None:
            return self.fixed
        rate = self.rate if rate is None else rate
        return threshold_from_scores(self.used_scores, rate, self.used_owners, name)

    def p_values(self, scores):
        """Return how unusual images with these scores would be among normal ones."""
        return p_values_from_scores(self.used_scores, scores, self.used_owners)

    def alarm_rate(self, offset):
        """Return about which fraction of new normal images score below a threshold."""
        # Just below the last score that raises none: a threshold lies on it, or above.
        below = np.nextafter(np.nextafter(offset, -np.inf), -np.inf)
        return float(self.p_values(np.array([below]))[0])

    def alarm_range(self, offset):
        """Return the range of that fraction, by how many calibrating images are below.

        If scores did not choose `offset`. A group counts as one image.
        """
        owners = self.used_owners
        n = len(self.used_scores if owners is None else np.unique(owners))
        return bound_rate(max(self.alarm_rate(offset) * (n + 1) - 1, 0), n)

    def tune(self, good, defective, miss_cost, alarm_cost):
        """Return one with a threshold fixed by labelled scores, and facts about it."""
        former = self.offset(self.rate, name=None)
        offset = tune_threshold(good, defective, former, miss_cost, alarm_cost)
        n_alarms, n_misses = (
            int((good < offset).sum()),
            int((defective >= offset).sum()),
        )
        facts = dict(
            threshold=offset,
            n_good=len(good),
            n_defective=len(defective),
            n_alarms=n_alarms,
            n_misses=n_misses,
            alarm_range=bound_rate(n_alarms, len(good)),
            miss_range=bound_rate(n_misses, len(defective)),
            false_alarm_rate=self.alarm_rate(offset),
            false_alarm_range=self.alarm_range(offset),
        )
        return self.change(fixed=offset), facts

    def change_rate(self, rate):
        """Return one with another rate of false alarms."""
        return self._change_all(rate=rate)

    def _change_all(self, **changes):
        """Return one with other values, also of the calibration that counts."""
        held_out = self.held_out
        if held_out is not None:
            changes["held_out"] = held_out.change(**changes)
        return self.change(**changes)

    def number(self, groups):
        """Return the numbers of the groups of more images; known labels go on."""
        return number_owners(groups, self.groups, self.owners)

    def number_new(self, n_images):
        """Return the numbers of as many new groups."""
        return self.owners.max() + 1 + np.arange(n_images)

    def extend(self, plain, owners, calibrates, groups):
        """Return the calibration with more images, without what raises their scores.

        `groups` are their labels, or None.
        """
        return self.change(
            plain=np.concatenate([self.plain, plain]),
            owners=np.concatenate([self.owners, owners]),
            groups=append_labels(self.groups, groups, len(plain)),
            calibrates=np.concatenate([self.calibrates, calibrates]),
            raised=None,
        )

    def forget_raised(self):
        """Return the calibration without what known defects made of its scores."""
        return self._change_all(raised=None)

    def take(self, indices):
        """Return the calibration of some images that the bank does not hold."""
        return self._take(indices).change(images=self.images.take(indices))

    def _take(self, indices):
        parts = {
            name: getattr(self, name)[indices]
            for name in ("plain", "calibrates", "owners", "groups", "raised")
            if getattr(self, name) is not None
        }
        _, parts["owners"] = np.unique(parts["owners"], return_inverse=True)
        return self.change(**parts)

    def drop(self, is_dropped):
        """Return the calibration without some of the images of the bank."""
        return self.forget_raised()._take(np.flatnonzero(~is_dropped))

    def join(self, others, added):
        """Return the calibration with images that were added to copies of it.

        `added` holds, for each of the others, the indices of the images that join.
        """
        joined = self
        for other, new in zip(others, added, strict=True):
            labels = None if other.groups is None else other.groups[new]
            if labels is None:  # numbers of one copy mean nothing to another
                owners = joined.number_new(len(new))
            else:
                owners = joined.number(labels)
            plain, calibrates = other.plain[new], other.calibrates[new]
            joined = joined.extend(plain, owners, calibrates, labels)
        return joined
