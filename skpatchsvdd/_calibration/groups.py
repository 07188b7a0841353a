"""Images that belong together: groups that users name, and twins that are found."""

import reprlib
from collections.abc import Mapping, Set

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from skpatchsvdd._utils import TwinsFound, as_columns, expand, halve_squares, warn

# Fraction of the groups that the encoder is not trained on. The threshold can promise
# no smaller rate than 1 / (1 + their number), and an encoder needs few images.
_SET_ASIDE = 1 / 2
# The encoder needs at least this many images to train on.
_MIN_TRAINED = 2
# With fewer images nothing is said.
_MIN_IMAGES = 4
# Similar images that are looked at for each patch, and left out one by one; b is
# measured from two thirds of these on, and twins are at most half of them.
_N_NEAREST, _N_LEFT_OUT = 20, 12
# What leaving out a twin must add, in logarithms: so many times what the law says, and
# two percent. Of few images, less than so many, b is known roughly: more is needed.
_FACTOR, _MARGIN = 1.5, 0.02
_FEW, _FACTOR_OF_FEW = 6, 2.5
# The least fraction of images that have twins: if fewer have, a rate of false alarms is
# at most 1 / (1 - fraction) times what it should be.
_HARMFUL = 0.1
# Patches of each image that are compared, at most and at least, and products of all
# comparisons beyond which a CPU does not look.
_N_PATCHES, _MIN_PATCHES, _MAX_PRODUCTS = 32, 8, 2**34
# Products held at a time.
_PRODUCTS = 2**24


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


def find_twins(bank, n_images, device):
    r"""Return labels of images, the same for those that show the same piece.

    From a `Bank` of patches of so many images, of one scale. None if few images have
    twins, or there are too few or too many to tell.

    Several pictures of one piece lend each other patches that no picture of a new piece
    finds. So their scores without themselves are too low, and so is a threshold of
    them. Whether images are twins is not a question of how alike they are: parts in
    similar poses are alike, too, and so are new ones. If images are spread evenly,
    leaving out the m most similar ones raises the distance to the nearest patch by

    .. math:: b \, (1 + 1/2 + ... + 1/m)

    in logarithms, where b follows from how many dimensions they vary in. Far from an
    image, where none are twins, b can be measured. Twins stand out: leaving them out
    raises distances by more than that.
    """
    n_pairs = n_images * len(bank.rows)
    too_many = device.type == "cpu" and n_pairs * _MIN_PATCHES > _MAX_PRODUCTS
    if len(np.unique(bank.places[:, 0])) < _MIN_IMAGES or too_many:
        return None
    n_each = int(np.clip(_MAX_PRODUCTS // (4 * n_pairs), _MIN_PATCHES, _N_PATCHES))
    rises, left_out = _leave_out_all(*_compare(bank, n_images, n_each, device))
    n_left_out = rises.shape[1]
    n_near, max_twins = 2 * n_left_out // 3, n_left_out // 2
    # The tail of an image that few others are like tells little: no less than usual.
    slopes = rises[:, n_left_out - 1] - rises[:, n_near - 1]
    slopes /= (1 / np.arange(n_near + 1, n_left_out + 1)).sum()
    slopes = np.maximum(slopes, np.median(slopes))[:, None]
    law = slopes / np.arange(1, max_twins + 1)
    more = np.diff(rises[:, :max_twins], axis=1, prepend=0)
    factor = _FACTOR_OF_FEW if n_images < _FEW else _FACTOR
    are_twins = np.logical_and.accumulate(more > factor * law + _MARGIN, axis=1)
    first, k = np.nonzero(are_twins)
    links = csr_matrix(
        (np.ones(len(first)), (first, left_out[first, k])), shape=(n_images, n_images)
    )
    _, labels = connected_components(links, directed=False)
    is_harmful = np.mean(np.bincount(labels)[labels] > 1) >= _HARMFUL
    return labels if is_harmful else None


def _compare(bank, n_images, n_each, device):
    """Return, for some patches of each image, how far other images' patches are.

    Arrays of shape (n_images, n_patches, n_nearest): the distances to the nearest patch
    of each of the nearest images, in logarithms, and the numbers of these images.
    """
    order = np.argsort(bank.places[:, 0], kind="stable")
    owners = bank.places[order, 0].astype(np.int64)
    counts = np.bincount(owners, minlength=n_images)
    rows = torch.tensor(bank.rows[order], device=device)
    columns, half_squares = as_columns(rows), halve_squares(rows)
    rng, queries = np.random.RandomState(0), []
    for patches in np.split(np.arange(len(owners)), counts.cumsum()[:-1]):
        # A small bank may keep few patches of an image, or none: then it has no twins.
        patches = patches if len(patches) else np.arange(1)
        queries.append(rng.choice(patches, n_each, replace=len(patches) < n_each))
    owners, found = torch.from_numpy(owners).to(device), []
    n_nearest = min(_N_NEAREST, (counts > 0).sum() - 1)
    size = max(_PRODUCTS // len(rows), 1)
    for part in torch.from_numpy(np.concatenate(queries)).to(device).split(size):
        halves = expand(half_squares, rows[part], columns) + half_squares[part][:, None]
        if (counts == counts[0]).all():
            by_image = halves.view(len(part), n_images, -1).amin(dim=2)
        else:
            by_image = halves.new_full((len(part), n_images), torch.inf)
            index = owners.expand(len(part), -1)
            by_image.scatter_reduce_(1, index, halves, "amin")
        by_image.scatter_(1, owners[part][:, None], torch.inf)
        found.append(by_image.topk(n_nearest, dim=1, largest=False))
    halves, nearest = (torch.cat(x).cpu().numpy() for x in zip(*found, strict=True))
    shape = n_images, n_each, n_nearest
    distances = np.log(np.maximum(2 * halves, 1e-6)) / 2
    return distances.reshape(shape), nearest.reshape(shape)


def _leave_out_all(distances, nearest):
    """Leave out, for each image, the others one by one, those first that most find.

    Arrays of shape (n_images, n_left_out): by how much the distances of its patches
    rise, in logarithms, their mean, and the images that were left out.
    """
    n_images, n_left_out = len(distances), min(_N_LEFT_OUT, distances.shape[2] - 1)
    rises = np.zeros((n_images, n_left_out))
    left_out = np.zeros((n_images, n_left_out), dtype=int)
    patches = np.arange(distances.shape[1])
    for i in range(n_images):
        is_there = np.ones(nearest[i].shape, dtype=bool)
        first = np.zeros(len(patches), dtype=int)
        for k in range(n_left_out):
            most = np.bincount(nearest[i, patches, first]).argmax()
            is_there &= nearest[i] != most
            is_there[:, -1] = True  # beyond all that are known
            first = is_there.argmax(axis=1)
            left_out[i, k] = most
            rises[i, k] = (distances[i, patches, first] - distances[i, :, 0]).mean()
    return rises, left_out


def warn_of_twins(labels):
    """Say which images show the same piece, and what was done about it."""
    sizes = np.bincount(labels)
    sets = [np.flatnonzero(labels == x).tolist() for x in np.flatnonzero(sizes > 1)]
    names = "; ".join(" and ".join(map(str, places)) for places in sets[:3])
    more = f"; and {len(sets) - 3} more sets" if len(sets) > 3 else ""
    warn(
        f"some images look like several pictures of one piece: {names}{more} (by their "
        "places in X). Each is scored without the others of its set, and each set "
        "counts once, so that the threshold holds for new pieces. Pass groups to say "
        "which images belong together, or groups=None if none do.",
        TwinsFound,
    )
