"""What pictures are drawn on, and what of an estimator is drawn."""

from sklearn.utils.validation import check_is_fitted

from skpatchsvdd._utils import detector_of

# Those of Okabe and Ito, which people with any colour vision can tell apart: blue,
# vermilion, green, purple, sky blue, orange and black. Yellow is too faint on white.
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#E69F00", "#000000"),
)


def import_pyplot():
    """Return matplotlib.pyplot, or say how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install matplotlib") from error
    return plt


class OnAxes:
    """What displays on one pair of axes share."""

    def _start(self, ax, size):
        """Set the axes to draw on: those given, or a new figure's, drawing in `COLORS`.

        A size is the width and height in inches.
        """
        if ax is None:
            _, ax = import_pyplot().subplots(figsize=size, layout="constrained")
            ax.set_prop_cycle(color=COLORS)
        self.ax_, self.figure_ = ax, ax.figure

    def _draw_upright(self, x, label, **style):
        """Draw an upright line, and return it; of None there is none."""
        if x is None:
            return None
        return self.ax_.axvline(x, linewidth=1.2, label=label.format(x), **style)


def read_learnt(estimator, name):
    """Return a learnt attribute of an estimator, a pipeline or a search, or raise."""
    detector = detector_of(estimator)
    check_is_fitted(detector)
    if not hasattr(detector, name):
        raise TypeError(
            f"estimator must have {name}, as PatchSVDD has; {type(detector).__name__} "
            "has not."
        )
    return getattr(detector, name)
