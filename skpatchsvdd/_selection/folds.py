"""Folds that train on normal images alone."""

from math import ceil
from numbers import Integral, Real

import numpy as np
from sklearn.model_selection import (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
)
from sklearn.utils import check_consistent_length

from skpatchsvdd._calibration import check_groups
from skpatchsvdd._images import check_labels, read_labels

# A threshold comes from images that the bank does not hold: one image is too few.
_MIN_TRAIN = 2


class _NormalOnly:
    """What both splitters share: they train on normal images alone."""

    # Groups, where they are given, are for the folds; as for scikit-learn's GroupKFold.
    __metadata_request__split = {"groups": True}  # noqa: RUF012

    def split(self, X, y=None, groups=None):
        """Yield the indices of the images to train on and of those to test.

        Parameters
        ----------
        X : array-like of shape (n_images, ...) or list
            The images. Only their number counts.
        y : array-like of shape (n_images,) or (n_images, height, width), or list
            1 for normal images and -1 for abnormal ones; or masks, of which that of an
            abnormal image has a pixel that is not 0.
        groups : array-like of shape (n_images,), default=None
            Which images belong together, as tiles of one sheet do. Normal images of a
            group are never trained on and tested at once. Abnormal images are tested
            whatever their group.

        Yields
        ------
        train : ndarray of shape (n_train,)
            Indices of normal images.
        test : ndarray of shape (n_test,)
            Indices of other normal images, and of abnormal ones.
        """
        labels = labels_from(y)
        check_consistent_length(X, labels)
        groups = check_groups(groups, len(labels))
        normal, abnormal = np.flatnonzero(labels == 1), np.flatnonzero(labels == -1)
        if len(abnormal) == 0:
            raise ValueError(
                f"y holds {len(labels)} normal images and no abnormal one (-1), so "
                "there is nothing to detect in a test. Pass abnormal images too, or "
                "split normal images alone with scikit-learn's KFold."
            )
        if groups is None:
            yield from self._split_images(labels, normal, abnormal)
        else:
            yield from self._split_groups(normal, abnormal, groups[normal])


class NormalOnlyKFold(_NormalOnly, StratifiedKFold):
    """K folds for labelled images, of which only normal ones are trained on.

    Each fold holds its part of the normal and its part of the abnormal images, and
    is tested once. Training sees the normal images of the other folds; abnormal ones
    are tested and never trained on. Pass it as `cv` to scikit-learn's searches and
    cross-validation.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2. There must be as many normal images, four for two
        folds, and as many abnormal ones.
    shuffle : bool, default=False
        Whether to shuffle the images of each kind first. False puts neighbours into one
        fold: images that are sorted by their defects should be shuffled.
    random_state : int, RandomState instance or None, default=None
        Makes the folds reproducible. Only for ``shuffle=True``.

    See Also
    --------
    NormalOnlyShuffleSplit : Tests all abnormal images in every split.

    Examples
    --------
    >>> from skpatchsvdd.model_selection import NormalOnlyKFold
    >>> y = [1, 1, 1, 1, 1, 1, -1, -1, -1]
    >>> for train, test in NormalOnlyKFold(3).split(y, y):
    ...     print(train, test)
    [2 3 4 5] [0 1 6]
    [0 1 4 5] [2 3 7]
    [0 1 2 3] [4 5 8]
    """

    split = _NormalOnly.split  # the documentation has members of a class itself

    def _split_images(self, labels, normal, abnormal):
        self._check_kinds(len(normal), len(abnormal), "normal images")
        for train, test in StratifiedKFold.split(self, labels, labels):
            yield train[labels[train] == 1], test

    def _split_groups(self, normal, abnormal, groups):
        n_groups = len(np.unique(groups))
        self._check_kinds(n_groups, len(abnormal), "groups of normal images")
        params = {"n_splits": self.n_splits, "shuffle": self.shuffle}
        params["random_state"] = self.random_state
        folds = zip(
            GroupKFold(**params).split(normal, groups=groups),
            KFold(**params).split(abnormal),
            strict=True,
        )
        for (train, test), (_, tested) in folds:
            yield normal[train], np.union1d(normal[test], abnormal[tested])

    def _check_kinds(self, n_normal, n_abnormal, what):
        # One in each fold will do, but two folds train on one another: two in each.
        n_needed = 2 * _MIN_TRAIN if self.n_splits == 2 else self.n_splits
        if n_normal < n_needed:
            fewer = min(n_normal, n_abnormal)
            other = f", or n_splits={fewer}" if fewer > _MIN_TRAIN else ""
            raise ValueError(
                f"n_splits={self.n_splits} needs at least {n_needed} {what}, to "
                f"test one in each fold and to train on {_MIN_TRAIN} others, but y "
                f"holds {n_normal}. Pass more {what}{other}."
            )
        if n_abnormal < self.n_splits:
            fewer = f"n_splits={n_abnormal} or " if n_abnormal > 1 else ""
            raise ValueError(
                f"n_splits={self.n_splits} needs at least {self.n_splits} abnormal "
                f"images, one to test in each fold, but y holds {n_abnormal}. Pass "
                f"{fewer}NormalOnlyShuffleSplit, whose test sets hold all abnormal "
                "images."
            )


class NormalOnlyShuffleSplit(_NormalOnly, ShuffleSplit):
    """Random splits of labelled images, of which only normal ones are trained on.

    Each split trains on a random choice of the normal images, and tests the other
    normal ones and all abnormal ones. For few abnormal images: all splits test the same
    ones, so the spread of the scores does not tell what other defects would change.

    Parameters
    ----------
    n_splits : int, default=10
        Number of splits.
    test_size : float in (0, 1) or int, default=0.2
        Fraction of the normal images that is tested, or their number; of their groups,
        where groups are given.
    random_state : int, RandomState instance or None, default=None
        Makes the splits reproducible.

    See Also
    --------
    NormalOnlyKFold : Tests each image once.

    Examples
    --------
    >>> from skpatchsvdd.model_selection import NormalOnlyShuffleSplit
    >>> y = [1, 1, 1, 1, 1, 1, -1, -1]
    >>> cv = NormalOnlyShuffleSplit(3, test_size=2, random_state=0)
    >>> for train, test in cv.split(y, y):
    ...     print(train, test)
    [0 1 3 4] [2 5 6 7]
    [0 2 4 5] [1 3 6 7]
    [0 1 2 4] [3 5 6 7]
    """

    split = _NormalOnly.split

    def __init__(self, n_splits=10, *, test_size=0.2, random_state=None):
        if not isinstance(n_splits, Integral) or n_splits < 1:
            raise ValueError(f"n_splits must be a positive integer, got {n_splits!r}.")
        super().__init__(
            n_splits=n_splits, test_size=test_size, random_state=random_state
        )

    def _split_images(self, labels, normal, abnormal):
        self._check_test_size(len(normal), "normal images")
        # scikit-learn splits the normal images, as if there were no others.
        for train, test in ShuffleSplit.split(self, normal):
            yield np.sort(normal[train]), np.union1d(normal[test], abnormal)

    def _split_groups(self, normal, abnormal, groups):
        self._check_test_size(len(np.unique(groups)), "groups of normal images")
        splits = GroupShuffleSplit(
            self.n_splits, test_size=self.test_size, random_state=self.random_state
        ).split(normal, groups=groups)
        for train, test in splits:
            yield np.sort(normal[train]), np.union1d(normal[test], abnormal)

    def _check_test_size(self, n_normal, what):
        size = self.test_size
        if isinstance(size, Integral):
            fits, n_test = size > 0, size
        else:
            fits = isinstance(size, Real) and 0 < size < 1
            n_test = ceil(size * n_normal) if fits else 0
        if not fits:
            raise ValueError(
                f"test_size must be a fraction of the {what} in (0, 1) or their "
                f"number, at least 1, got {size!r}."
            )
        if n_normal - n_test < _MIN_TRAIN:
            raise ValueError(
                f"test_size={size!r} tests {n_test} of the {n_normal} {what} in y, and "
                f"at least {_MIN_TRAIN} must be left to train on. Pass a smaller "
                f"test_size, or more {what}."
            )


def labels_from(y):
    """Return 1 for each normal and -1 for each abnormal image of labels or masks."""
    check_given(y)
    return check_labels(read_labels(y))


def check_given(y):
    if y is None:
        raise ValueError(
            "y is None. Pass 1 for each normal and -1 for each abnormal image, or a "
            "mask for each image."
        )
