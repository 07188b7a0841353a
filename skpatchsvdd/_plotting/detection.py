"""The ROC curve of image scores."""

from numbers import Real

import numpy as np
from sklearn.metrics import roc_curve
from sklearn.utils import check_scalar

from skpatchsvdd._images import check_labels, read_labels
from skpatchsvdd._plotting.axes import make_ax
from skpatchsvdd._utils import detector_of, offset_of
from skpatchsvdd.metrics import detection_auroc


class DetectionCurveDisplay:
    """ROC curve of detecting abnormal images, and the point on it that `predict` takes.

    Abnormal is the positive class. Several curves can be drawn on the same axes: pass
    the first one's `ax_` as `ax`, and names. Make one with `from_estimator` or
    `from_predictions`. Drawing needs matplotlib: ``pip install matplotlib``.

    Parameters
    ----------
    fpr : array-like of shape (n_points,)
        False positive rate: the fraction of normal images that are called abnormal.
    tpr : array-like of shape (n_points,)
        True positive rate: the fraction of abnormal images that are called so.
    auroc : float, default=None
        Area under the curve.
    operating_point : tuple of (float, float), default=None
        Both rates at the threshold.
    name : str, default=None
        Name of the curve in the legend.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure drawn on.
    ax_ : matplotlib.axes.Axes
        The axes drawn on.
    line_ : matplotlib.lines.Line2D
        The curve.
    point_ : matplotlib.lines.Line2D or None
        The operating point.

    See Also
    --------
    skpatchsvdd.metrics.detection_auroc : The area under the curve.

    Examples
    --------
    >>> from skpatchsvdd.plotting import DetectionCurveDisplay
    >>> display = DetectionCurveDisplay.from_predictions(
    ...     [1, 1, -1, -1], [-0.1, -0.3, -0.2, -0.9], offset=-0.5
    ... )
    >>> display.auroc, display.operating_point
    (0.75, (0.0, 0.5))
    """

    def __init__(self, fpr, tpr, *, auroc=None, operating_point=None, name=None):
        self.fpr = fpr
        self.tpr = tpr
        self.auroc = auroc
        self.operating_point = operating_point
        self.name = name

    @classmethod
    def from_estimator(cls, estimator, X, y, *, name=None, ax=None):
        """Score images with a fitted estimator and draw the curve.

        Parameters
        ----------
        estimator : object
            Anything fitted that has `score_samples`, or a pipeline that ends in it. If
            it has a threshold, `offset_`, the operating point is drawn too.
        X : array-like of shape (n_images, ...) or list
            The images.
        y : object
            As for `from_predictions`.
        name : str, default=None
            Name of the curve in the legend; None is that of the estimator's class.
        ax : object
            As for `from_predictions`.

        Returns
        -------
        display : DetectionCurveDisplay
        """
        if name is None:
            name = type(detector_of(estimator)).__name__
        scores, offset = estimator.score_samples(X), offset_of(estimator)
        return cls.from_predictions(y, scores, offset=offset, name=name, ax=ax)

    @classmethod
    def from_predictions(cls, y, scores, *, offset=None, name=None, ax=None):
        """Draw the curve of scores.

        Parameters
        ----------
        y : array-like of shape (n_images,) or (n_images, height, width), or list
            1 for normal images and -1 for abnormal ones; or masks, of which that of an
            abnormal image has a pixel that is not 0.
        scores : array-like of shape (n_images,)
            As `score_samples` gives them: high for normal.
        offset : float, default=None
            The threshold: `offset_`, or 0 for scores of `decision_function`.
        name : str, default=None
            Name of the curve in the legend.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display : DetectionCurveDisplay
        """
        labels = check_labels(read_labels(y))
        auroc = detection_auroc(labels, scores)
        scores = np.asarray(scores)
        fpr, tpr, _ = roc_curve(labels, -scores, pos_label=-1)
        point = None
        if offset is not None:
            alarms = scores < check_scalar(offset, "offset", Real)
            point = tuple(float(alarms[labels == x].mean()) for x in (1, -1))
        display = cls(fpr, tpr, auroc=auroc, operating_point=point, name=name)
        return display.plot(ax=ax)

    def plot(self, *, ax=None, name=None):
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.
        name : str, default=None
            Name of the curve in the legend; None takes the display's.

        Returns
        -------
        self : DetectionCurveDisplay
        """
        self.ax_ = make_ax(4.6, 4.6) if ax is None else ax
        self.figure_ = self.ax_.figure
        if not self.ax_.lines:  # the first curve
            self.ax_.plot([0, 1], [0, 1], color="0.6", linestyle=":", linewidth=1)
        label = self._label(self.name if name is None else name)
        # Over the frame, where a good curve runs.
        (self.line_,) = self.ax_.plot(self.fpr, self.tpr, label=label, clip_on=False)
        self.point_ = self._draw_point()
        self.ax_.set_xlim(0, 1)
        self.ax_.set_ylim(0, 1)
        self.ax_.set_aspect("equal")
        self.ax_.set_xlabel("false positive rate (normal images)")
        self.ax_.set_ylabel("true positive rate (abnormal images)")
        if label is not None or self.point_ is not None:
            self.ax_.legend(loc="lower right", fontsize="small")
        return self

    def _label(self, name):
        area = None if self.auroc is None else f"AUROC {self.auroc:.3f}"
        return ", ".join(filter(None, (name, area))) or None

    def _draw_point(self):
        if self.operating_point is None:
            return None
        false, found = self.operating_point
        label = f"threshold: {found:.0%} found, {false:.0%} false alarms"
        color = self.line_.get_color()
        style = dict(markeredgecolor="black", clip_on=False, zorder=3, label=label)
        (point,) = self.ax_.plot([false], [found], "o", color=color, **style)
        return point
