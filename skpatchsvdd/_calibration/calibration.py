"""The one owner of the scores that thresholds and p-values come from."""

from dataclasses import dataclass, fields, replace

import numpy as np

from skpatchsvdd._calibration.groups import append_labels, number_owners
from skpatchsvdd._calibration.threshold import (
    count_scores,
    p_values_from_scores,
    threshold_from_scores,
)
from skpatchsvdd._calibration.tuning import bound_rate
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

    def __post_init__(self):
        parts = (self.plain, self.calibrates, self.owners, self.groups, self.raised)
        lengths = {len(x) for x in parts if x is not None}
        if len(lengths) > 1:
            raise ValueError(
                "plain, calibrates, owners, groups and raised must have one length, "
                f"got {sorted(lengths)}"
            )

    def __len__(self):
        return len(self.plain)

    @classmethod
    def saved_names(cls):
        """Return the names of what is saved: all that it is made of."""
        return tuple(x.name for x in fields(cls))

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
        """Return the score below which an image is called abnormal.

        The fixed one, or that of a rate, if one is given. `name` is that of the
        parameter in warnings; without one, there is none.
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
        """Return in which range that fraction lies, if scores did not choose `offset`.

        By how many of the images that calibrate score below it; groups count as one.
        """
        owners = self.used_owners
        n = len(self.used_scores if owners is None else np.unique(owners))
        return bound_rate(max(self.alarm_rate(offset) * (n + 1) - 1, 0), n)

    def change(self, **changes):
        """Return one with other values of some parameters."""
        return replace(self, **changes)

    def change_rate(self, rate):
        """Return one with another rate of false alarms."""
        held_out = self.held_out
        if held_out is not None:
            held_out = held_out.change(rate=rate)
        return self.change(rate=rate, held_out=held_out)

    def number(self, groups):
        """Return the numbers of groups of more images, by their labels.

        A label that is known continues its group.
        """
        return number_owners(groups, self.groups, self.owners)

    def number_new(self, n_images):
        """Return the numbers of as many new groups."""
        return self.owners.max() + 1 + np.arange(n_images)

    def extend(self, plain, owners, groups=None, is_seen=False):
        """Return the calibration with more images, without what raises their scores.

        `groups` are their labels, or None; those of groups that the encoder was trained
        on, `is_seen`, do not calibrate.
        """
        calibrates = np.ones(len(plain), dtype=bool) & ~np.asarray(is_seen)
        return self.change(
            plain=np.concatenate([self.plain, plain]),
            owners=np.concatenate([self.owners, owners]),
            groups=append_labels(self.groups, groups, len(plain)),
            calibrates=np.concatenate([self.calibrates, calibrates]),
            raised=None,
        )

    def forget_raised(self):
        """Return the calibration without what known defects made of its scores."""
        held_out = self.held_out
        if held_out is not None:
            held_out = held_out.change(raised=None)
        return self.change(raised=None, held_out=held_out)

    def take(self, indices):
        """Return the calibration of some images that the bank does not hold."""
        parts = {
            name: getattr(self, name)[indices]
            for name in ("plain", "calibrates", "owners", "groups", "raised")
            if getattr(self, name) is not None
        }
        _, parts["owners"] = np.unique(parts["owners"], return_inverse=True)
        return self.change(**parts, images=self.images.take(indices))

    def drop(self, is_dropped):
        """Return the calibration without some images."""
        parts = {
            name: getattr(self, name)[~is_dropped]
            for name in ("plain", "calibrates", "owners", "groups")
            if getattr(self, name) is not None
        }
        _, parts["owners"] = np.unique(parts["owners"], return_inverse=True)
        return self.change(raised=None, **parts)

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
            is_seen = ~other.calibrates[new]
            joined = joined.extend(other.plain[new], owners, labels, is_seen)
        return joined
