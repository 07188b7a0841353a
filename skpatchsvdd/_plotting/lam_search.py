"""The trials by which lambda was chosen."""

import numpy as np
from sklearn.utils import check_consistent_length

from skpatchsvdd._plotting.axes import COLORS, make_ax
from skpatchsvdd._plotting.learnt import read_learnt

_BLUE, _VERMILION, *_ = COLORS


class LamSearchDisplay:
    """Score of every value of `lam` that was tried, and the one that was chosen.

    ``lam="auto"`` does not choose the highest score, but the smallest value that is not
    clearly worse. Make one with `from_estimator` or `from_cv_results`. Drawing needs
    matplotlib: ``pip install matplotlib``.

    Parameters
    ----------
    lam : array-like of shape (n_values,)
        The values.
    score : array-like of shape (n_values,)
        Their scores.
    fit_time : array-like of shape (n_values,), default=None
        How long each took, in seconds: written beside the points.
    chosen : float, default=None
        The value that was chosen, one of `lam`.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure drawn on.
    ax_ : matplotlib.axes.Axes
        The axes drawn on.
    line_ : matplotlib.lines.Line2D
        The scores.
    point_ : matplotlib.lines.Line2D or None
        The value that was chosen.

    Examples
    --------
    >>> from skpatchsvdd.plotting import LamSearchDisplay
    >>> display = LamSearchDisplay([0.03, 0.3, 3.0], [0.8, 0.9, 0.87], chosen=0.3)
    >>> display.plot().ax_.get_xscale()
    'log'
    """

    def __init__(self, lam, score, *, fit_time=None, chosen=None):
        self.lam = lam
        self.score = score
        self.fit_time = fit_time
        self.chosen = chosen

    @classmethod
    def from_estimator(cls, estimator, *, ax=None):
        """Draw the trials of an estimator that was fitted with ``lam="auto"``.

        Parameters
        ----------
        estimator : PatchSVDD
            Fitted, or a pipeline or search that ends in it.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display : LamSearchDisplay
        """
        results = read_learnt(estimator, "lam_results_")
        if results is None:
            raise ValueError(
                "estimator has tried no values of lam: lam_results_ is None. Fit it "
                'with lam="auto", with training and at least four images.'
            )
        chosen = read_learnt(estimator, "lam_")
        return cls(**results, chosen=chosen).plot(ax=ax)

    @classmethod
    def from_cv_results(cls, cv_results, *, ax=None):
        """Draw a search of scikit-learn over `lam` alone, by one metric.

        Parameters
        ----------
        cv_results : dict of str to array-like
            The search's `cv_results_`.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display : LamSearchDisplay
        """
        params = [name for name in cv_results if name.startswith("param_")]
        is_lam = [name.endswith(("param_lam", "__lam")) for name in params]
        if is_lam != [True] or "mean_test_score" not in cv_results:
            raise ValueError(
                "cv_results must be of a search over lam alone, by one metric, got "
                f"{sorted(cv_results)}."
            )
        (lam,) = (cv_results[name] for name in params)
        lam = _check_lam(lam, "cv_results")
        order = np.argsort(lam)
        best = np.argmin(cv_results["rank_test_score"])
        display = cls(
            lam[order],
            np.asarray(cv_results["mean_test_score"])[order],
            fit_time=np.asarray(cv_results["mean_fit_time"])[order],
            chosen=lam[best],
        )
        return display.plot(ax=ax)

    def plot(self, *, ax=None):
        """Draw the scores.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        self : LamSearchDisplay
        """
        check_consistent_length(self.lam, self.score, self.fit_time)
        lam = _check_lam(self.lam, "lam")
        self.ax_ = make_ax(4.6, 3.4) if ax is None else ax
        self.figure_ = self.ax_.figure
        (self.line_,) = self.ax_.plot(lam, self.score, "o-", color=_BLUE)
        self.point_ = self._mark_chosen()
        self._write_times()
        _scale_axis(self.ax_, lam)
        self.ax_.margins(0.15)
        self.ax_.set_xlabel("lam")
        self.ax_.set_ylabel("score")
        return self

    def _mark_chosen(self):
        if self.chosen is None:
            return None
        if self.chosen not in self.lam:
            raise ValueError(
                f"chosen must be one of lam, {list(self.lam)}, got {self.chosen!r}."
            )
        (point,) = self.ax_.plot(
            [self.chosen],
            [self.score[list(self.lam).index(self.chosen)]],
            "o",
            color=_VERMILION,
            markersize=10,
            label=f"chosen: {self.chosen:g}",
        )
        self.ax_.legend(fontsize="small")
        return point

    def _write_times(self):
        if self.fit_time is None:
            return
        for lam, score, time in zip(self.lam, self.score, self.fit_time, strict=True):
            self.ax_.annotate(
                f"{time:.3g} s",
                (lam, score),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
                fontsize="small",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )


def _check_lam(lam, name):
    """Return values of lam as an array of numbers."""
    try:
        return np.asarray(lam, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must hold numbers as values of lam, got {list(lam)}."
        ) from error


def _scale_axis(ax, lam):
    """Make the axis of lam logarithmic, with a tick at each value; 0 is on it too."""
    if lam.min() > 0:
        ax.set_xscale("log")
    else:
        ax.set_xscale("symlog", linthresh=lam[lam > 0].min(initial=1.0))
    ax.set_xticks(lam, labels=[f"{value:g}" for value in lam])
    ax.minorticks_off()
