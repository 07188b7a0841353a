"""Groups of images that belong together: which are set aside from training."""

import reprlib
from collections.abc import Mapping, Set

import numpy as np

# Fraction of the groups that the encoder is not trained on. The threshold can promise
# no smaller rate than 1 / (1 + their number), and an encoder needs few images.
_SET_ASIDE = 1 / 2
# The encoder needs at least this many images to train on.
_MIN_TRAINED = 2


def check_groups(groups, n_images):
    """Return one label of a group for each image, as an array; None stays None."""
    if groups is None:
        return None
    labels = _as_column(groups)
    if np.ndim(labels) != 1:
        raise ValueError(
            "groups must hold a label, such as a number or a name, for each image, "
            f"got {reprlib.repr(groups)}."
        )
    groups = labels
    if len(groups) != n_images:
        raise ValueError(
            "groups must hold one label for each image of X, got "
            f"{len(groups)} labels for {n_images} images."
        )
    if any(x is None or x != x for x in groups.tolist()):  # nan is not itself
        raise ValueError(
            "groups must hold a label for each image, got a missing value. Pass a "
            "label of its own for an image that belongs to no group."
        )
    return groups if groups.dtype.kind in "biufU" else groups.astype(str)


def _as_column(groups):
    """Return labels as an array, with one axis if there is one label for each image."""
    if isinstance(groups, str | Mapping | Set) or not hasattr(groups, "__len__"):
        return None
    try:
        labels = np.asarray(groups)
    except ValueError:  # lists of unequal length
        return None
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def check_n_groups(groups):
    """Raise if images are all of one group."""
    if groups is not None and len(np.unique(groups)) < 2:
        raise ValueError(
            f"groups holds one group, {groups[0]}, and at least two are needed: one "
            "to train on, one to calibrate on. Pass images of more groups, or no "
            "groups."
        )


def check_more_groups(groups, former, n_images):
    """Check the groups of images that join others, whose groups are `former`."""
    if groups is None and former is not None:
        raise ValueError(
            "fit was given groups, and partial_fit was not. Pass groups, such as "
            "groups=['lot 7'] * len(X) for images of one new group."
        )
    if groups is not None and former is None:
        raise ValueError(
            "partial_fit was given groups, and fit was not. Pass groups to fit "
            "too, so that it calibrates on groups that the encoder has not seen."
        )
    return check_groups(groups, n_images)


def number_owners(groups, former=None, owners=()):
    """Return, for each image, the number of its group.

    Those of `former` images, with the numbers `owners`, go on; new ones are numbered in
    the order in which they come. An image without a label, None, is its own group.
    """
    numbers, found = {}, []
    for label, owner in zip(() if former is None else former, owners, strict=False):
        numbers.setdefault(_write(label), int(owner))
    n_groups = max(owners, default=-1) + 1
    for label in groups:
        name = object() if label is None else _write(label)
        number = numbers.setdefault(name, n_groups)
        n_groups = max(n_groups, number + 1)
        found.append(number)
    return np.array(found, dtype=int)


def _write(label):
    """Return a label as text: 1, 1.0 and "1" are one group, in whatever array."""
    label = label.item() if hasattr(label, "item") else label
    is_whole = isinstance(label, float) and label.is_integer()
    return str(int(label) if is_whole or isinstance(label, bool) else label)


def append_labels(former, new, n_new):
    """Return former and new labels of images, None of those without one.

    As they are where their type can hold both; None if former ones have no labels.
    """
    if former is None:
        return None
    new = np.full(n_new, None) if new is None else new
    if former.dtype.kind == new.dtype.kind:
        return np.concatenate([former, new])
    labels = [*former.tolist(), *new.tolist()]
    if len({isinstance(x, str) for x in labels if x is not None}) > 1:
        labels = [x if x is None else _write(x) for x in labels]
    kept = np.array(labels)
    # Whole numbers that no type can hold, as those of int64 and uint64, stay objects.
    return kept if kept.tolist() == labels else np.array(labels, dtype=object)


def split_groups(groups, is_seen, trains, rng):
    """Choose the groups to train on and those to calibrate on.

    Those of which a former training has seen an image do not calibrate. Returns the
    number of each image's group (without groups, its own), the indices of the images
    to train on, and whether thresholds come from an image.
    """
    everyone = np.arange(len(is_seen))
    if groups is None:
        return everyone, everyone, np.ones(len(is_seen), dtype=bool)
    owners = number_owners(groups)
    unseen = np.setdiff1d(owners, owners[is_seen])
    if len(unseen) == 0:
        raise ValueError(
            "warm_start=True goes on from an encoder that has been trained on images "
            "of every group, so none is left to calibrate on. Pass images of a new "
            "group too, or warm_start=False."
        )
    if not trains:
        return owners, everyone, np.isin(owners, unseen)
    is_aside = np.isin(owners, choose_aside(owners, unseen, rng))
    return owners, np.flatnonzero(~is_aside), is_aside


def choose_aside(owners, unseen, rng):
    """Choose, of the unseen groups, those that the encoder is not trained on."""
    sizes = np.bincount(owners)
    aside = rng.permutation(unseen)[: max(int(_SET_ASIDE * len(sizes)), 1)]
    if len(owners) - sizes[aside].sum() < _MIN_TRAINED:
        aside = np.setdiff1d(unseen, sizes.argmax())  # the largest is trained on
    if len(aside) == 0 or len(owners) - sizes[aside].sum() < _MIN_TRAINED:
        raise ValueError(
            f"setting aside one of {len(sizes)} groups leaves fewer than "
            f"{_MIN_TRAINED} images to train on. Pass more images."
        )
    return aside
