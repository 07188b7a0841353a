"""The one owner of the scores of normal images, and thresholds and p-values of them."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from skpatchsvdd._calibration.groups import append_labels, number_owners
from skpatchsvdd._calibration.labelled import bound_rate, tune_threshold
from skpatchsvdd._scoring import EncodedImages
from skpatchsvdd._utils import Saved, warn

# Scores are tied if they differ by no more than this fraction: a few roundings.
_TIED = 1e-6
# Sums of fractions are rounded to this many digits before they are compared, so that
# ten times 0.1 is 1.
_DIGITS = 9
# How far above its level what resembles a known defect is raised at most, as a fraction
# of the level: what nobody has seen yet would be missed below a higher threshold.
_RISE = 0.25


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

    def tune(self, good, defective, rate, miss_cost, alarm_cost):
        """Return one with a threshold fixed by labelled scores, and facts about it.

        The nearest one to that of a rate of false alarms.
        """
        former = self.offset(rate, name=None)
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


def check_scores(scores):
    """Raise if scores are not finite, and warn if they are all the same."""
    if not np.isfinite(scores).all():
        raise FloatingPointError(
            "the scores of the training images are not finite. Pass a smaller "
            "Training(learning_rate=...), and images scaled to about 0..1."
        )
    if are_tied(scores):
        warn(
            "all training images score the same, so the scores say nothing. Are the "
            "images all the same, or is there a copy of each?",
            ConvergenceWarning,
        )


def are_tied(scores):
    """Whether more than two scores are all the same."""
    return len(scores) > 2 and np.ptp(scores) <= _TIED * np.abs(scores).max()


def warn_of_collapse(training):
    """Say that a training has collapsed and is undone."""
    other = ", training='dense'" if training == "paper" else ""
    warn(
        "training has collapsed all features to one point, and all training images "
        "score the same. Continuing with the weights before training. Pass a smaller "
        f"lam or Training(learning_rate=...){other}, or early_stopping=True.",
        ConvergenceWarning,
    )


def count_abnormality(plain, raised, level):
    r"""Return how abnormal images or pixels count that known defects may raise.

    The larger of both, the plain value a and the raised value r; above the level T of
    plain thresholds, a raised value counts as

    .. math:: T \left(1 + \frac{1 - T / r}{4}\right),

    so that known defects raise a threshold by a quarter at most.
    """
    beyond = level * (1 + _RISE * (1 - level / raised.clamp(min=1e-30)))
    return torch.maximum(plain, torch.where(raised > level, beyond, raised))


def count_scores(plain, raised, levels):
    """Return the scores that count: `count_abnormality` of minus scores, as arrays.

    In single precision, as images are inspected, so that both agree to the last bit.
    """
    scores = (torch.from_numpy(-x).float() for x in (plain, raised))
    counted = count_abnormality(*scores, torch.from_numpy(levels).float())
    return -counted.double().numpy()


def threshold_from_scores(
    scores, false_alarm_rate, groups=None, name="false_alarm_rate", n_more=0
):
    """Choose the score below which an image is called abnormal.

    Images that score less have p-values, by `p_values_from_scores`, of at most
    `false_alarm_rate`; those that score as much or more have larger ones. Without
    groups, it is the k-th lowest of n scores, with the largest k for which k / (n + 1)
    is at most `false_alarm_rate`. "auto" is the lowest score.

    `name` is that of the parameter in warnings; without one, there is none. `n_more`
    more groups may be called abnormal.
    """
    order, sums, n_groups = _sum_fractions(scores, groups)
    allowed = 0
    if false_alarm_rate != "auto":
        allowed = np.round(false_alarm_rate * (n_groups + 1), _DIGITS)
        if allowed < 1 and name is not None:
            _warn_of_few(false_alarm_rate, name, n_groups, groups is not None)
    if allowed < 1 and n_more == 0:
        return float(scores.min())
    allowed = max(allowed, 1) + n_more
    if 1 + n_groups <= allowed:
        return 0.0
    # With ties, the sum at a score is that of the last one of its equals.
    ends = np.searchsorted(order, order, side="right")
    return float(order[np.argmax(1 + sums[ends] > allowed)])


def p_values_from_scores(scores, new, groups=None):
    r"""Return how unusual new images would be among normal ones.

    With G groups, of which group g has the :math:`n_g` scores :math:`s_{gi}`, a new
    score s has the p-value

    .. math:: \frac{1}{G + 1} \left(
        1 + \sum_g \frac{|\{i : s_{gi} \le s\}|}{n_g} \right).

    If groups are exchangeable, and images within a group are, a normal image of a new
    group has a p-value of at most a with a probability of at most a, for any a and any
    sizes of the groups [1]_ [2]_. Where each image is its own group, this is the
    fraction of images that score no higher, the new one counted among them.

    References
    ----------
    .. [1] R. Dunn, L. Wasserman and A. Ramdas, "Distribution-free prediction sets for
       two-layer hierarchical models", Journal of the American Statistical Association,
       2022.
    .. [2] Y. Lee, R. F. Barber and R. Willett, "Distribution-free inference with
       hierarchical data", arXiv:2306.06342, 2023.
    """
    order, sums, n_groups = _sum_fractions(scores, groups)
    return (1 + sums[np.searchsorted(order, new, side="right")]) / (n_groups + 1)


def _sum_fractions(scores, groups):
    """Return scores in order, sums of fractions of groups of the k lowest, and G."""
    groups = np.arange(len(scores)) if groups is None else groups
    _, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(scores, kind="stable")
    sums = np.round(np.cumsum(1 / sizes[inverse][order]), _DIGITS)
    return scores[order], np.concatenate([[0.0], sums]), len(sizes)


def _warn_of_few(false_alarm_rate, name, n_groups, are_groups):
    n_needed = int(np.ceil(np.round(1 / false_alarm_rate, _DIGITS))) - 1
    unit = "groups" if are_groups else "images"
    whose = "images of new groups" if are_groups else "new normal images"
    more = " Pass images of more groups for a smaller fraction." if are_groups else ""
    warn(
        f"{name}={false_alarm_rate:g} needs at least {n_needed} {unit} to calibrate "
        f"on, got {n_groups}. The threshold is their lowest score: up to about one in "
        f"{n_groups + 1} {whose} will be called abnormal.{more}",
    )
