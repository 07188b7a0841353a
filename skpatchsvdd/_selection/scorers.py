"""Scorers of images and pixels, with labels or with synthetic defects."""

from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from sklearn.pipeline import Pipeline

from skpatchsvdd._images import (
    as_images,
    check_images,
    check_is_list,
    find_normal,
    pixels_to_float,
)
from skpatchsvdd._selection.folds import check_given, labels_from
from skpatchsvdd._synthetic import make_probes
from skpatchsvdd._utils import detector_of, maps_of
from skpatchsvdd.metrics import detection_auroc, pro_score, segmentation_auroc


@dataclass(frozen=True)
class SyntheticDefectScorer:
    """Rate an estimator without any abnormal image, by synthetic defects.

    Normal images that the estimator has not seen get defects of several kinds and
    sizes: scratches, stains, holes, swirls, rubbed and missing parts, pieces from
    elsewhere. The score is the area under the ROC curve of telling them from the images
    as they are and from the same images in a slightly different light, contrast and
    slope of light, none of which should matter. Pass it as `scoring` to scikit-learn's
    searches, with a plain ``KFold`` over normal images.

    Parameters
    ----------
    n_copies : int, default=2
        How many copies of each image get a defect.
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

    n_copies: int = 2
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
            Anything fitted that has `score_samples`, or a pipeline that ends in it.
        X : array-like of shape (n_images, height, width[, n_channels]) or list
            Images in any form that `PatchSVDD.fit` takes, paths of files among them.
            The estimator is given copies as an array, or as a tensor if X is one.
        y : array-like, default=None
            Labels or masks; images that they call abnormal are left out.

        Returns
        -------
        auroc : float
            1 is perfect, 0.5 is chance.
        """
        images = _read_images(estimator, as_images(X))
        images = images.take(find_normal(y, len(images)))
        if len(images) == 0:
            raise ValueError(
                "y calls all images abnormal. Pass normal ones, to put defects on."
            )
        pixels = images.pixels
        rng = np.random.RandomState(self.random_state)
        copies, labels = make_probes(pixels_to_float(pixels), self.n_copies, rng)
        copies = _like(X, copies, pixels.dtype)
        return detection_auroc(labels, estimator.score_samples(copies))


def detection_scorer(estimator, X, y) -> float:
    """Rate how well the scores of images separate abnormal ones: the AUROC of images.

    Parameters
    ----------
    estimator : object
        Anything fitted that has `score_samples`, or a pipeline that ends in it.
    X : array-like of shape (n_images, ...) or list
        The images.
    y : array-like of shape (n_images,) or (n_images, height, width), or list
        1 for normal images and -1 for abnormal ones; or masks, of which that of an
        abnormal image has a pixel that is not 0.

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
    labels = labels_from(y)
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
    estimator : object
        Anything fitted that has `anomaly_map`, or a pipeline that ends in it. The
        pipeline must leave the size of images as it is.
    X : array-like of shape (n_images, ...) or list
        The images.
    y : array-like of shape (n_images, height, width) or list of (height, width)
        Masks: any value but 0 at abnormal pixels.

    Returns
    -------
    pro : float
        1 is perfect; a map of noise has 0.15.

    Examples
    --------
    >>> import numpy as np
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> from skpatchsvdd.model_selection import pro_scorer
    >>> X = make_textures(6, image_size=48, random_state=0).images
    >>> est = PatchSVDD(patch_size=32, max_iter=0, random_state=0).fit(X[:4])
    >>> masks = np.zeros((6, 48, 48), dtype=bool)
    >>> masks[4:, 10:30, 10:30] = True
    >>> X[masks] = 0  # two images get a hole
    >>> pro_scorer(est, X, masks) > 0.5
    True
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
    check_given(y)
    check_is_list(y)
    masks = list(y)
    if any(np.ndim(mask) == 0 for mask in masks):
        raise ValueError(
            "y holds labels, but pixels are rated by masks. Pass masks of shape "
            "(n_images, height, width) as y, or rate images by detection_scorer."
        )
    _check_some_abnormal(labels_from(masks))
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
