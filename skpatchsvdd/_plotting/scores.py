"""Histograms of scores, and the threshold between them."""

from numbers import Real

import numpy as np
from sklearn.utils import check_consistent_length, check_scalar

from skpatchsvdd._images import check_labels, read_labels
from skpatchsvdd._plotting.axes import COLORS, OnAxes, read_learnt
from skpatchsvdd._utils import check_finite_scores, offset_of

_HISTOGRAM_COLORS = dict(
    training="0.6", new=COLORS[0], normal=COLORS[0], abnormal=COLORS[1]
)


class ScoreHistogramDisplay(OnAxes):
    """Histograms of the scores of training images and of new ones, and the threshold.

    Each histogram sums to one, however many images it is of. Where new normal images
    score lower than training images, light, camera or material may have changed since
    training. Make one with `from_estimator` or `from_predictions`. Drawing needs
    matplotlib: ``pip install matplotlib``.

    Parameters
    ----------
    training_scores : array-like of shape (n_training_images,)
        Scores of the training images, each without its own patches: high is normal.
    scores : array-like of shape (n_images,)
        Scores of new images.
    labels : array-like of shape (n_images,), default=None
        1 for normal and -1 for abnormal new images.
    offset : float, default=None
        The threshold: images that score lower are called abnormal.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure drawn on.
    ax_ : matplotlib.axes.Axes
        The axes drawn on.
    steps_ : dict of str to matplotlib.patches.StepPatch
        The histograms: "training" and "new", or "training", "normal" and "abnormal".
    line_ : matplotlib.lines.Line2D or None
        The threshold.

    Examples
    --------
    >>> from skpatchsvdd.plotting import ScoreHistogramDisplay
    >>> display = ScoreHistogramDisplay.from_predictions(
    ...     [-1.0, -1.1, -1.2], [-1.1, -1.9, -2.4], y=[1, -1, -1], offset=-1.2
    ... )
    >>> list(display.steps_)
    ['training', 'normal', 'abnormal']
    """

    def __init__(self, training_scores, scores, *, labels=None, offset=None):
        self.training_scores = training_scores
        self.scores = scores
        self.labels = labels
        self.offset = offset

    @classmethod
    def from_estimator(cls, estimator, X, y=None, **options):
        """Score images with a fitted estimator and draw the histograms.

        Parameters
        ----------
        estimator : PatchSVDD
            Fitted, or a pipeline or search that ends in it. It gives the scores of the
            training images, `training_scores_`, and the threshold, `offset_`.
        X : array-like of shape (n_images, height, width[, n_channels]) or list
            New images.
        y : object
            As for `from_predictions`.
        **options : dict
            `ax` and `bins`, as for `plot`.

        Returns
        -------
        display : ScoreHistogramDisplay
        """
        training_scores = read_learnt(estimator, "training_scores_")
        scores, offset = estimator.score_samples(X), offset_of(estimator)
        return cls.from_predictions(
            training_scores, scores, y, offset=offset, **options
        )

    @classmethod
    def from_predictions(
        cls, training_scores, scores, y=None, *, offset=None, **options
    ):
        """Draw the histograms of scores.

        Parameters
        ----------
        training_scores : array-like of shape (n_training_images,)
            Scores of the training images, each without its own patches.
        scores : array-like of shape (n_images,)
            Scores of new images, as `score_samples` gives them: high for normal.
        y : array-like of shape (n_images,) or (n_images, height, width), default=None
            1 for normal and -1 for abnormal new images, or a mask for each: these two
            kinds get a histogram each.
        offset : float, default=None
            The threshold, as `offset_`.
        **options : dict
            `ax` and `bins`, as for `plot`.

        Returns
        -------
        display : ScoreHistogramDisplay
        """
        training_scores = check_finite_scores(training_scores, "training_scores")
        scores = check_finite_scores(scores, "scores")
        labels = None
        if y is not None:
            labels = check_labels(read_labels(y))
            check_consistent_length(scores, labels)
        if offset is not None:
            check_scalar(offset, "offset", Real)
        display = cls(training_scores, scores, labels=labels, offset=offset)
        return display.plot(**options)

    def plot(self, *, ax=None, bins=20):
        """Draw the histograms and the threshold.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.
        bins : int, default=20
            Number of bins, from the lowest of all scores to the highest. Where these
            are negative and differ by a factor of ten or more, as far defects do, bins
            and axis are logarithmic: else all normal scores would be in one bin.

        Returns
        -------
        self : ScoreHistogramDisplay
        """
        self._start(ax, (5.6, 3.6))
        groups = self._split_scores()
        scores = np.concatenate(list(groups.values()))
        edges = self._cut_bins(scores, bins)
        self.steps_ = {
            name: self._draw_steps(group, edges, name) for name, group in groups.items()
        }
        self.line_ = self._draw_upright(
            self.offset, "threshold, {:.3g}", color="black", linestyle="--"
        )
        self.ax_.set_xlabel("score: high is normal")
        self.ax_.set_ylabel("fraction of these images")
        self.ax_.legend(fontsize="small")
        return self

    def _split_scores(self):
        """Return scores by the name of their histogram; those without any are out."""
        groups = {"training": self.training_scores, "new": self.scores}
        if self.labels is not None:
            scores, labels = np.asarray(groups.pop("new")), np.asarray(self.labels)
            groups |= {"normal": scores[labels == 1], "abnormal": scores[labels == -1]}
        return {name: group for name, group in groups.items() if len(group)}

    def _cut_bins(self, scores, bins):
        """Return the edges of bins, and set the scale of the axis to theirs."""
        lowest, highest = scores.min(), scores.max()
        if highest >= 0 or lowest > 10 * highest:
            return np.histogram_bin_edges(scores, bins)
        self.ax_.set_xscale("symlog", linthresh=-highest / 2)
        edges = -np.geomspace(-lowest, -highest, bins + 1)
        edges[[0, -1]] = lowest, highest  # whatever rounding says
        return edges

    def _draw_steps(self, scores, edges, name):
        counts, _ = np.histogram(scores, edges)
        fractions, color = counts / len(scores), _HISTOGRAM_COLORS[name]
        head = name if name in ("training", "new") else f"new, {name}"
        label = f"{head} ({len(scores)})"
        self.ax_.stairs(fractions, edges, fill=True, color=color, alpha=0.35)
        return self.ax_.stairs(
            fractions, edges, color=color, linewidth=1.4, label=label
        )
