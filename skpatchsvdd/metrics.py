"""How well scores and maps separate abnormal images and pixels from normal ones."""

import numpy as np
from scipy import ndimage
from sklearn.utils import check_consistent_length

from skpatchsvdd._images import as_array
from skpatchsvdd._utils import column_or_1d

__all__ = ["best_f1", "detection_auroc", "pro_score", "segmentation_auroc"]


def detection_auroc(y, scores) -> float:
    r"""Area under the ROC curve of image scores.

    .. math:: P(s_{abnormal} < s_{normal}) + P(s_{abnormal} = s_{normal}) / 2

    Parameters
    ----------
    y : array-like of shape (n_images,)
        -1 for abnormal images, 1 for normal ones.
    scores : array-like of shape (n_images,)
        As `score_samples` and `decision_function` give them: high for normal.

    Returns
    -------
    auroc : float
        1 is perfect, 0.5 is chance.

    Examples
    --------
    >>> from skpatchsvdd.metrics import detection_auroc
    >>> detection_auroc([1, 1, -1, -1], [-0.1, -0.3, -0.2, -0.9])
    0.75
    """
    abnormal, scores = _check_labels(y, scores)
    return _auroc(scores[abnormal], scores[~abnormal])  # normal ones score higher


def segmentation_auroc(masks, maps) -> float:
    """Area under the ROC curve of all pixels of all images.

    Parameters
    ----------
    masks : array-like of shape (n_images, height, width) or list of (height, width)
        True, or any value but 0, at abnormal pixels.
    maps : array-like of shape (n_images, height, width) or list of (height, width)
        As `anomaly_map` gives them: high for abnormal.

    Returns
    -------
    auroc : float
        1 is perfect, 0.5 is chance.

    Examples
    --------
    >>> from skpatchsvdd.metrics import segmentation_auroc
    >>> segmentation_auroc([[[0, 0], [0, 1]]], [[[0.1, 0.4], [0.2, 0.3]]])
    0.6666666666666666
    """
    masks, maps = _check_maps(masks, maps)
    normal, abnormal = _split_pixels(masks, maps)
    return _auroc(normal, abnormal)


def pro_score(masks, maps, max_fpr=0.3) -> float:
    r"""Area under the per-region overlap curve.

    At each threshold, the overlap is the mean over all abnormal regions of the fraction
    of a region's pixels above the threshold: every region counts the same, however
    small. Its area over the false positive rate up to `max_fpr` is divided by
    `max_fpr`. Regions are connected at edges or corners [1]_.

    Parameters
    ----------
    masks : array-like of shape (n_images, height, width) or list of (height, width)
        True, or any value but 0, at abnormal pixels.
    maps : array-like of shape (n_images, height, width) or list of (height, width)
        As `anomaly_map` gives them: high for abnormal.
    max_fpr : float, default=0.3
        Largest false positive rate, in (0, 1].

    Returns
    -------
    pro : float
        1 is perfect; a map of noise has ``max_fpr / 2``.

    References
    ----------
    .. [1] P. Bergmann et al., "The MVTec Anomaly Detection Dataset", International
       Journal of Computer Vision, 2021.

    Examples
    --------
    >>> from skpatchsvdd.metrics import pro_score
    >>> pro_score([[[0, 0], [0, 1]]], [[[0.1, 0.4], [0.2, 0.5]]])
    1.0
    """
    if not 0 < max_fpr <= 1:
        raise ValueError(f"max_fpr must be in (0, 1], got {max_fpr!r}.")
    masks, maps = _check_maps(masks, maps)
    normal, abnormal = _split_pixels(masks, maps)
    return _area_of_overlap(normal, abnormal, _region_weights(masks), max_fpr)


def best_f1(y, scores) -> float:
    """Largest F1 score of the abnormal class over all thresholds.

    Parameters
    ----------
    y : array-like of shape (n_images,)
        -1 for abnormal images, 1 for normal ones.
    scores : array-like of shape (n_images,)
        As `score_samples` and `decision_function` give them: high for normal.

    Returns
    -------
    f1 : float
        1 is perfect.

    Examples
    --------
    >>> from skpatchsvdd.metrics import best_f1
    >>> best_f1([1, 1, -1, -1], [-0.1, -0.3, -0.2, -0.9])
    0.8
    """
    abnormal, scores = _check_labels(y, scores)
    order = np.argsort(scores, kind="stable")
    found = np.cumsum(abnormal[order])
    alarms = np.arange(1, len(scores) + 1)
    f1 = 2 * found / (alarms + abnormal.sum())
    # A threshold cannot part equal scores: only the last of them is a candidate.
    last = np.append(np.diff(scores[order]) != 0, True)
    return float(f1[last].max())


def _check_labels(y, scores):
    y = column_or_1d(y)
    scores = column_or_1d(_check_finite(scores, "scores"))
    check_consistent_length(y, scores)
    unknown = np.setdiff1d(y, [-1, 1])
    if len(unknown):
        raise ValueError(
            "y must hold 1 for normal and -1 for abnormal images, got "
            f"{unknown[0].item()!r}."
        )
    if len(np.unique(y)) < 2:
        raise ValueError("y must hold both normal (1) and abnormal (-1) images.")
    return y == -1, scores


def _check_finite(x, name):
    """Return an array of finite numbers, of any type, or raise."""
    x = as_array(x, name)
    if not np.isfinite(x).all():
        raise ValueError(f"{name} holds NaN or infinity, where numbers are expected.")
    return x


def _check_maps(masks, maps):
    """Return masks as booleans and maps, as lists of two-dimensional arrays."""
    if masks is None:
        raise ValueError("masks is None: without true masks, pixels cannot be rated.")
    masks = [_check_finite(x, f"masks[{i}]") != 0 for i, x in enumerate(masks)]
    maps = [_check_finite(x, f"maps[{i}]") for i, x in enumerate(maps)]
    check_consistent_length(masks, maps)
    for i, (mask, one_map) in enumerate(zip(masks, maps, strict=True)):
        if mask.ndim != 2 or mask.shape != one_map.shape:
            raise ValueError(
                f"masks[{i}] has shape {mask.shape} and maps[{i}] has shape "
                f"{one_map.shape}. Both must be (height, width) of the same image."
            )
    if all(mask.all() for mask in masks) or not any(mask.any() for mask in masks):
        raise ValueError("masks must hold both normal and abnormal pixels.")
    return masks, maps


def _split_pixels(masks, maps):
    """Values at normal and at abnormal pixels, image after image."""
    pairs = list(zip(masks, maps, strict=True))
    normal = np.concatenate([one_map[~mask] for mask, one_map in pairs])
    abnormal = np.concatenate([one_map[mask] for mask, one_map in pairs])
    return normal, abnormal


def _auroc(low, high):
    """Fraction of pairs in which the value of `high` is higher; ties count half."""
    low, high = np.sort(low), np.sort(high)
    below = np.searchsorted(low, high, side="left").sum(dtype=np.int64)
    not_above = np.searchsorted(low, high, side="right").sum(dtype=np.int64)
    n_pairs = len(low) * len(high)
    return float((int(below) + int(not_above)) / (2 * n_pairs))


def _region_weights(masks):
    """Weight of each abnormal pixel, in the order of `_split_pixels`.

    Weights sum to one over all pixels and are equal for all regions.
    """
    weights = []
    for mask in masks:
        labels, _ = ndimage.label(mask, structure=np.ones((3, 3)))
        weights.append(1 / np.bincount(labels.ravel())[labels[mask]])
    weights = np.concatenate(weights)
    return weights / weights.sum()


def _area_of_overlap(normal, abnormal, weights, max_fpr):
    """Area under the overlap over the false positive rate, divided by `max_fpr`."""
    abnormal, normal = _reverse(abnormal), np.sort(_reverse(normal))
    order = np.argsort(abnormal, kind="stable")
    abnormal = abnormal[order]
    overlap = np.append(0, np.cumsum(weights[order]))
    end = max_fpr * len(normal)  # false positives at the right end of the curve
    n_used = min(int(np.ceil(end)), len(normal))
    # All normal pixels of one value turn into false positives together: along such a
    # step the overlap rises in a straight line from `before` to `after`.
    values, starts = np.unique(normal[:n_used], return_index=True)
    stops = np.append(starts[1:], np.searchsorted(normal, values[-1], side="right"))
    before = overlap[np.searchsorted(abnormal, values, side="left")]
    after = overlap[np.searchsorted(abnormal, values, side="right")]
    width = np.minimum(stops, end) - starts
    used = width / (stops - starts)
    area = width * (before + used * (after - before) / 2)
    return float(area.sum() / end)


def _reverse(values):
    """Return values in the reverse order, by a way that no integer overflows in."""
    return -values if values.dtype.kind == "f" else ~values
