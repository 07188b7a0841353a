"""Folds that train on normal images alone; scorers for pixels, and without labels."""

from dataclasses import dataclass
from math import ceil
from numbers import Integral, Real

import numpy as np
import torch
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, KFold, ShuffleSplit
from sklearn.pipeline import Pipeline
from sklearn.utils import check_consistent_length

from skpatchsvdd._calibration import check_groups
from skpatchsvdd._images import (
    as_images,
    check_images,
    check_is_list,
    check_labels,
    find_normal,
    pixels_to_float,
    read_labels,
)
from skpatchsvdd._synthetic import make_probes, rank_pixels, rate_ranks, rate_scores
from skpatchsvdd._utils import detector_of, inspect_by, maps_of
from skpatchsvdd.metrics import detection_auroc, pro_score, segmentation_auroc

__all__ = [
    "NormalOnlyKFold",
    "NormalOnlyShuffleSplit",
    "SyntheticDefectScorer",
    "detection_scorer",
    "pro_scorer",
    "segmentation_scorer",
]

# A threshold comes from images that the bank does not hold: one image is too few.
_MIN_TRAIN = 2


class _NormalOnly:
    """What both splitters share: they train on normal images alone."""

    # As those of scikit-learn's GroupKFold.
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
        labels = _read_given(y)
        check_consistent_length(X, labels)
        groups = check_groups(groups, len(labels))
        normal, abnormal = np.flatnonzero(labels == 1), np.flatnonzero(labels == -1)
        if len(abnormal) == 0:
            raise ValueError(
                f"y holds {len(labels)} normal images and no abnormal one (-1), so "
                "there is nothing to detect in a test. Pass abnormal images too, or "
                "split normal images alone with scikit-learn's KFold."
            )
        n_normal, what = len(normal), "normal images"
        if groups is not None:
            groups = groups[normal]
            n_normal, what = len(np.unique(groups)), "groups of normal images"
        self._check_counts(n_normal, len(abnormal), what)
        for train, test, tested in self._split(normal, abnormal, groups):
            yield np.sort(normal[train]), np.union1d(normal[test], tested)


class NormalOnlyKFold(_NormalOnly, KFold):
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

    def _split(self, normal, abnormal, groups):
        params = {"n_splits": self.n_splits, "shuffle": self.shuffle}
        params["random_state"] = self.random_state
        of_normal = KFold(**params) if groups is None else GroupKFold(**params)
        folds = zip(
            of_normal.split(normal, groups=groups),
            KFold(**params).split(abnormal),
            strict=True,
        )
        for (train, test), (_, tested) in folds:
            yield train, test, abnormal[tested]

    def _check_counts(self, n_normal, n_abnormal, what):
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

    def _split(self, normal, abnormal, groups):
        kind = ShuffleSplit if groups is None else GroupShuffleSplit
        # scikit-learn splits the normal images, as if there were no others.
        splits = kind(
            self.n_splits, test_size=self.test_size, random_state=self.random_state
        )
        for train, test in splits.split(normal, groups=groups):
            yield train, test, abnormal

    def _check_counts(self, n_normal, n_abnormal, what):
        size = self.test_size
        n_test = size
        if isinstance(size, Real) and not isinstance(size, Integral) and size < 1:
            n_test = ceil(size * n_normal)
        if not isinstance(n_test, Integral) or n_test <= 0:
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


@dataclass(frozen=True)
class SyntheticDefectScorer:
    """Rate an estimator without any abnormal image, by synthetic defects.

    Copies of normal images that the estimator has not seen get defects: blots and
    scratches, from a few pixels to a quarter of the image, faint and strong, which show
    another place of it or of another image, what lies beside them, another light or
    contrast, a blur, one colour, or what surrounds them. The score is the mean of two
    figures: the part of damaged copies that are found at 5% of false alarms, by
    a normal distribution of the scores of the images as they are and in a slightly
    different light, contrast and slope of light, none of which should matter; and,
    where there are anomaly maps, how far the pixels of defects rank above those of the
    undamaged copies, as mean log odds, of which 1 stands for 999 : 1 and 0.5 for 1 : 1.
    Both tell a good setting from a better one where areas under the ROC curve are
    near 1. Pass it as `scoring` to scikit-learn's searches, with a plain ``KFold`` over
    normal images.

    It compares settings on the same images and does not say how well real defects
    will be found. The :ref:`user guide <without_labels>` says when to trust it.

    Parameters
    ----------
    n_copies : int, default=4
        How many copies of each image get a defect, each another one. More copies, or
        more images, make smaller differences count, and take longer.
    random_state : int, default=0
        The same images always get the same defects.

    Examples
    --------
    >>> from sklearn.model_selection import GridSearchCV, KFold
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> from skpatchsvdd.model_selection import SyntheticDefectScorer
    >>> X = make_textures(8, image_size=64, random_state=0).images
    >>> est = PatchSVDD(
    ...     encoder="hierarchical", patch_size=32, max_iter=0, random_state=0
    ... )
    >>> search = GridSearchCV(
    ...     est,
    ...     {"embedding_dim": [4, 64]},
    ...     scoring=SyntheticDefectScorer(),
    ...     cv=KFold(2),
    ... )
    >>> search.fit(X).best_params_
    {'embedding_dim': 64}
    """

    n_copies: int = 4
    random_state: int = 0

    def __post_init__(self):
        for name, lowest in (("n_copies", 1), ("random_state", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < lowest:
                raise ValueError(
                    f"{name} must be an integer of at least {lowest}, got {value!r}."
                )

    def __call__(self, estimator, X, y=None):
        """Rate an estimator.

        Parameters
        ----------
        estimator : object
            Anything fitted that has `score_samples`, and maybe `anomaly_map`, or a
            pipeline that ends in it.
        X : array-like of shape (n_images, height, width[, n_channels]) or list
            Images in any form that `PatchSVDD.fit` takes, paths of files among them.
            The estimator is given copies as an array, or as a tensor if X is one.
        y : array-like, default=None
            Labels or masks; images that they call abnormal are left out.

        Returns
        -------
        score : float
            In [0, 1], higher is better.
        """
        images = _read_images(estimator, as_images(X))
        images = images.take(find_normal(y, len(images)))
        if len(images) == 0:
            raise ValueError(
                "y calls all images abnormal. Pass normal ones, to put defects on."
            )
        pixels = images.pixels
        rng = np.random.RandomState(self.random_state)
        copies, masks = make_probes(pixels_to_float(pixels), self.n_copies, rng)
        scores, maps = inspect_by(estimator, _like(X, copies, pixels.dtype))
        rating = rate_scores(np.asarray(scores), masks.any(axis=(1, 2)))
        if maps is not None:
            rating = (rating + rate_ranks(rank_pixels(maps, masks))) / 2
        return float(rating)


def detection_scorer(estimator, X, y) -> float:
    """Rate how well the scores of images separate abnormal ones: the AUROC of images.

    Parameters
    ----------
    estimator : object
        Anything fitted that has `score_samples`, or a pipeline that ends in it.
    X : array-like of shape (n_images, ...) or list
        The images.
    y : array-like of shape (n_images,) or (n_images, height, width), or list
        1 for normal images and -1 for abnormal ones, or masks.

    Returns
    -------
    auroc : float
        1 is perfect, 0.5 is chance.

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> from skpatchsvdd.model_selection import NormalOnlyKFold, detection_scorer
    >>> X = make_textures(6, image_size=48, random_state=0).images
    >>> X[4:, 10:30, 10:30] = 0  # two images get a hole
    >>> y = [1, 1, 1, 1, -1, -1]
    >>> est = PatchSVDD(patch_size=32, max_iter=0, random_state=0)
    >>> cross_val_score(est, X, y, cv=NormalOnlyKFold(2), scoring=detection_scorer)
    array([1., 1.])
    """
    labels = _read_given(y)
    _check_some_abnormal(labels)
    return detection_auroc(labels, estimator.score_samples(X))


def segmentation_scorer(estimator, X, y) -> float:
    """Rate how well the maps of images separate abnormal pixels: the AUROC of pixels.

    Parameters
    ----------
    estimator : object
        Anything fitted that has `anomaly_map`, or a pipeline that ends in it. The
        pipeline must leave the size of images as it is.
    X : array-like of shape (n_images, ...) or list
        The images.
    y : array-like of shape (n_images, height, width) or list of (height, width)
        Masks: any value but 0 at abnormal pixels.

    Returns
    -------
    auroc : float
        1 is perfect, 0.5 is chance.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_validate
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> from skpatchsvdd.model_selection import NormalOnlyKFold
    >>> from skpatchsvdd.model_selection import detection_scorer, segmentation_scorer
    >>> X = make_textures(6, image_size=48, random_state=0).images
    >>> masks = np.zeros((6, 48, 48), dtype=bool)
    >>> masks[4:, 10:30, 10:30] = True
    >>> X[masks] = 0  # two images get a hole
    >>> est = PatchSVDD(patch_size=32, max_iter=0, random_state=0)
    >>> scoring = {"image": detection_scorer, "pixel": segmentation_scorer}
    >>> scores = cross_validate(est, X, masks, cv=NormalOnlyKFold(2), scoring=scoring)
    >>> scores["test_image"], scores["test_pixel"] > 0.8
    (array([1., 1.]), array([ True,  True]))
    """
    masks = _check_masks(y)
    return segmentation_auroc(masks, maps_of(estimator, X))


def pro_scorer(estimator, X, y) -> float:
    """Rate how well the maps of images cover abnormal regions: the PRO score.

    Parameters
    ----------
    estimator, X, y : object
        As for `segmentation_scorer`.

    Returns
    -------
    pro : float
        1 is perfect; a map of noise has 0.15.
    """
    masks = _check_masks(y)
    return pro_score(masks, maps_of(estimator, X))


def _check_some_abnormal(labels):
    """Raise if there is nothing to find, as in some parts of X that a search makes."""
    if not np.any(labels == -1):
        raise ValueError(
            f"y must hold abnormal images to be found, and calls all {len(labels)} "
            "normal. In HalvingGridSearchCV, which rates on random parts of X, pass "
            "resource='max_iter'; where a search rates images that were trained on, "
            "return_train_score=False."
        )


def _check_masks(y):
    _check_given(y)
    masks = list(y)
    if any(np.ndim(mask) == 0 for mask in masks):
        raise ValueError(
            "y holds labels, but pixels are rated by masks. Pass masks of shape "
            "(n_images, height, width) as y, or rate images by detection_scorer."
        )
    _check_some_abnormal(_read_given(masks))
    return masks


def _read_images(estimator, X):
    """Read an array or a list by the parameters of an estimator, if it has any."""
    detector = detector_of(estimator)
    size = getattr(detector, "image_size", None)
    is_pipeline = isinstance(getattr(estimator, "best_estimator_", estimator), Pipeline)
    if is_pipeline and isinstance(X, np.ndarray):
        size = None  # its steps may want images as they are
    return check_images(X, image_size=size)


def _like(X, copies, dtype):
    """Return copies of images in the form in which X came, which a pipeline may want.

    Without an axis of channels, as integers, as a tensor; `dtype` is that of files.
    """
    given = as_images(X)
    is_list = isinstance(given, list)
    first = given[0] if is_list else given
    dtype = getattr(first, "dtype", dtype)
    if dtype.kind == "u":
        copies = (np.iinfo(dtype).max * copies).round().astype(dtype)
    if np.ndim(first) + is_list == 3:
        copies = copies[..., 0]
    if isinstance(X, torch.Tensor):
        return torch.from_numpy(np.ascontiguousarray(copies)).to(X.device)
    return copies


def _read_given(y):
    """Return 1 for each normal and -1 for each abnormal image of labels or masks."""
    _check_given(y)
    return check_labels(read_labels(y))


def _check_given(y):
    if y is None:
        raise ValueError(
            "y is None. Pass 1 for each normal and -1 for each abnormal image, or a "
            "mask for each image."
        )
    check_is_list(y)
