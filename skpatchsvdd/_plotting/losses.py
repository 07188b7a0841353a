"""Loss terms during training, and the checks of it."""

from scipy.ndimage import uniform_filter1d
from sklearn.utils import check_consistent_length

from skpatchsvdd._plotting.axes import COLORS, OnAxes, read_learnt

# Part of all steps that a smoothed value is the mean of: single steps vanish.
_SMOOTHED = 1 / 20
_STYLES = ("-", "--", ":")


class LossCurveDisplay(OnAxes):
    """Loss terms at every step of training, and the checks on a second axis.

    A term has the colour of its kind and the line style of its patch size. Bold lines
    are means over a twentieth of the steps, the faint ones behind them are the values
    themselves. Make one with `from_estimator`. Drawing needs matplotlib:
    ``pip install matplotlib``.

    Parameters
    ----------
    loss_curve : dict of str to array-like of shape (n_steps,)
        Every term at every step, by names such as "svdd_32".
    validation_steps, validation_scores : array-like of shape (n_checks,), default=None
        The steps after which training was checked, and the scores.
    best_iter : int, default=None
        The step whose weights were kept.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure drawn on.
    ax_ : matplotlib.axes.Axes
        The axes of the losses.
    lines_ : dict of str to matplotlib.lines.Line2D
        The smoothed terms.
    validation_ax_ : matplotlib.axes.Axes or None
        The axes of the checks.
    validation_line_ : matplotlib.lines.Line2D or None
        The checks.
    best_line_ : matplotlib.lines.Line2D or None
        The step whose weights were kept.

    Examples
    --------
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> from skpatchsvdd.plotting import LossCurveDisplay
    >>> X = make_textures(4, image_size=48, random_state=0).images
    >>> est = PatchSVDD(max_iter=3, random_state=0).fit(X)
    >>> display = LossCurveDisplay.from_estimator(est)
    >>> [name for name in display.lines_ if name.endswith("_16")]
    ['position_16', 'svdd_16', 'damage_16']
    """

    def __init__(
        self,
        loss_curve,
        *,
        validation_steps=None,
        validation_scores=None,
        best_iter=None,
    ):
        self.loss_curve = loss_curve
        self.validation_steps = validation_steps
        self.validation_scores = validation_scores
        self.best_iter = best_iter

    @classmethod
    def from_estimator(cls, estimator, *, ax=None):
        """Draw how the training of a fitted estimator went.

        Parameters
        ----------
        estimator : PatchSVDD
            Fitted, with training, or a pipeline or search that ends in it.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display : LossCurveDisplay
        """
        loss_curve = read_learnt(estimator, "loss_curve_")
        if not loss_curve:
            raise ValueError(
                "estimator was fitted without training, so it has no losses to draw. "
                "Fit it with max_iter above 0, and with an encoder that is trained."
            )
        names = ("validation_steps", "validation_scores", "best_iter")
        learnt = {name: read_learnt(estimator, f"{name}_") for name in names}
        return cls(loss_curve, **learnt).plot(ax=ax)

    def plot(self, *, ax=None):
        """Draw the losses and the checks.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        self : LossCurveDisplay
        """
        check_consistent_length(*self.loss_curve.values())
        self._start(ax, (8.0, 4.0))
        self._draw_terms()
        self.best_line_ = self._draw_upright(
            self.best_iter, "weights kept, step {}", color="0.5"
        )
        self.validation_ax_ = self.validation_line_ = None
        if self.validation_steps is not None:
            self._draw_checks()
        self.ax_.set_xlabel("step")
        self.ax_.set_ylabel("loss term, unweighted")
        self._draw_legend()
        return self

    def _draw_terms(self):
        names = [name.rpartition("_") for name in self.loss_curve]
        kinds = list(dict.fromkeys(kind for kind, _, _ in names))
        sizes = list(dict.fromkeys(size for _, _, size in names))
        self.lines_ = {}
        for (name, values), (kind, _, size) in zip(
            self.loss_curve.items(), names, strict=True
        ):
            steps = range(1, len(values) + 1)
            color = COLORS[kinds.index(kind) % len(COLORS)]
            style = _STYLES[sizes.index(size) % len(_STYLES)]
            self.ax_.plot(steps, values, color=color, alpha=0.2, linewidth=0.6)
            window = max(round(_SMOOTHED * len(values)), 1)
            smooth = uniform_filter1d(values, window, output=float)
            (self.lines_[name],) = self.ax_.plot(
                steps, smooth, style, color=color, linewidth=1.6, label=name
            )

    def _draw_checks(self):
        self.validation_ax_ = self.ax_.twinx()
        points = self.validation_steps, self.validation_scores
        style = dict(color="black", linewidth=1, markersize=4, label="checks")
        (self.validation_line_,) = self.validation_ax_.plot(*points, "o-", **style)
        self.validation_ax_.set_ylabel("AUROC of the checks")

    def _draw_legend(self):
        """Draw one legend for both axes, beside them, where it hides nothing."""
        handles = [*self.lines_.values(), self.best_line_, self.validation_line_]
        handles = [handle for handle in handles if handle is not None]
        anchor = (1.02 if self.validation_ax_ is None else 1.16, 1.0)
        self.ax_.legend(
            handles=handles, loc="upper left", bbox_to_anchor=anchor, fontsize="small"
        )
