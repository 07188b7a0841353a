"""Features of patches drawn in the plane."""

import numpy as np
from sklearn.manifold import TSNE
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from threadpoolctl import threadpool_limits  # comes with scikit-learn

from skpatchsvdd._analysis.dimension import check_features, draw_evenly, same_distance
from skpatchsvdd._plotting import import_pyplot

# t-SNE weighs about this many neighbours of a point, and no more than a third of all.
_PERPLEXITY = 30.0

_MIN_DRAWN = 4


class PatchEmbeddingDisplay:
    """Features of patches in the plane, coloured by the patches' position in the image.

    The paper's t-SNE figure [1]_. Where images are aligned, as pictures of parts are,
    patches in one position look the same in all of them, and colours form clusters.
    Where any position looks like any other, as in pictures of materials, colours mix.
    Make one with `from_estimator`. Drawing needs matplotlib:
    ``pip install matplotlib``.

    Parameters
    ----------
    points : ndarray of shape (n_samples, 2)
        The features, projected to the plane.
    theta : ndarray of shape (n_samples,)
        Angle of the patch's centre around the image's centre, in -pi to pi: 0 is to the
        right, pi / 2 above.
    r : ndarray of shape (n_samples,)
        Distance from the image's centre to the patch's centre, in pixels of the image
        as it is inspected.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure drawn on.
    axes_ : ndarray of matplotlib.axes.Axes, of shape (2,)
        The points coloured by `theta`, and by `r`.

    References
    ----------
    .. [1] J. Yi and S. Yoon, "Patch SVDD: Patch-level SVDD for Anomaly Detection and
       Segmentation", Asian Conference on Computer Vision, 2020.

    Examples
    --------
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.analysis import PatchEmbeddingDisplay
    >>> from skpatchsvdd.datasets import make_textures
    >>> X = make_textures(4, image_size=48, random_state=0).images
    >>> est = PatchSVDD(encoder="hierarchical", patch_size=32, max_iter=0).fit(X)
    >>> display = PatchEmbeddingDisplay.from_estimator(
    ...     est, X, n_samples=60, random_state=0
    ... )
    >>> display.points.shape
    (60, 2)
    """

    def __init__(self, points, theta, r):
        self.points = points
        self.theta = theta
        self.r = r

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        *,
        patch_size=None,
        n_samples=2000,
        random_state=None,
        axes=None,
        **options,
    ):
        """Encode patches of images with a fitted estimator, project and draw them.

        Most of the time goes into t-SNE, on one core: ten seconds for 2000 patches.

        Parameters
        ----------
        estimator : PatchSVDD
            Fitted.
        X : array-like of shape (n_images, height, width[, n_channels]) or list
            The images.
        patch_size : int or str, default=None
            One of `scales_`. None is the last.
        n_samples : int, default=2000
            How many patches to draw, as many from each image as from any other. None
            takes all.
        random_state : int, RandomState instance or None, default=None
            Which patches are drawn, and how t-SNE begins.
        axes : ndarray of matplotlib.axes.Axes, of shape (2,), default=None
            Axes to draw on; None makes a new figure.
        **options : dict
            `theta_cmap`, `r_cmap` and `s`, as for `plot`.

        Returns
        -------
        display : PatchEmbeddingDisplay
        """
        check_is_fitted(estimator)
        if not hasattr(estimator, "embed"):
            raise TypeError(
                "estimator must be a PatchSVDD, got "
                f"{type(estimator).__name__}. Of a pipeline or a search, pass the "
                "fitted PatchSVDD inside it."
            )
        # Before the work, not after it.
        if axes is None:
            import_pyplot()
        else:
            _check_axes(axes)
        if patch_size is None:
            patch_size = estimator.scales_[-1]
        features = check_features(estimator.embed(X, patch_size))
        rng = check_random_state(random_state)
        drawn = draw_evenly(features.shape[:2], n_samples, _MIN_DRAWN, rng)
        points = _project(features[drawn], rng)
        theta, r = _polar_positions(estimator, patch_size)
        display = cls(points, theta[drawn[1]], r[drawn[1]])
        return display.plot(axes=axes, **options)

    def plot(self, *, axes=None, theta_cmap="hsv", r_cmap="viridis", s=6):
        """Draw the points twice.

        Parameters
        ----------
        axes : ndarray of matplotlib.axes.Axes, of shape (2,), default=None
            Axes to draw on; None makes a new figure.
        theta_cmap : str, default="hsv"
            Colours of the angle. They should be cyclic: its ends are one direction.
        r_cmap : str, default="viridis"
            Colours of the distance.
        s : float, default=6
            Area of a point, in points squared.

        Returns
        -------
        self : PatchEmbeddingDisplay
        """
        check_consistent_length(self.points, self.theta, self.r)
        self.axes_ = _make_axes() if axes is None else _check_axes(axes)
        by_theta, by_r = self.axes_
        self.figure_ = by_theta.figure
        bar = self._scatter(
            by_theta, self.theta, s, cmap=theta_cmap, vmin=-np.pi, vmax=np.pi
        )
        bar.set_ticks(
            np.pi * np.array([-1, -0.5, 0, 0.5, 1]),
            labels=["left", "below", "right", "above", "left"],
        )
        by_theta.set_title("direction θ from the image's centre", fontsize="small")
        self._scatter(by_r, self.r, s, cmap=r_cmap, vmin=0)
        by_r.set_title("distance r from the image's centre, pixels", fontsize="small")
        return self

    def _scatter(self, axis, values, s, **colors):
        """Draw the points in the colours of values; return their colour bar."""
        dots = axis.scatter(*self.points.T, c=values, s=s, linewidths=0, **colors)
        axis.set_aspect("equal", adjustable="datalim")
        axis.set_xticks([])
        axis.set_yticks([])
        return self.figure_.colorbar(dots, ax=axis)


def _project(features, rng):
    """Return t-SNE's points in the plane, of shape (n, 2)."""
    n_points, n_features = features.shape
    if n_points < _MIN_DRAWN:
        raise ValueError(
            f"X has {n_points} patches to draw; a picture takes at least {_MIN_DRAWN}. "
            "Pass more images."
        )
    apart = np.linalg.norm(features - features[0], axis=1)
    if apart.max() <= same_distance(features):
        raise ValueError(
            "all patches of X have the same feature: there is nothing to draw. Are the "
            "images all empty?"
        )
    tsne = TSNE(
        perplexity=min(_PERPLEXITY, (n_points - 1) / 3),
        init="pca" if n_features > 1 else "random",
        random_state=rng,
    )
    # More threads would add in another order each time, and wait for each other for
    # most of the time where other processes need the cores.
    with threadpool_limits(limits=1):
        return tsne.fit_transform(features)


def _polar_positions(estimator, scale):
    """Return angle and distance of each patch from the image's centre."""
    height, width, _ = estimator.inspected_shape_
    number = estimator.scales_.index(scale)
    patch_size, stride = estimator.patch_sizes_[number], estimator.strides_[number]
    top = np.arange(0, height - patch_size + 1, stride)
    left = np.arange(0, width - patch_size + 1, stride)
    up = (height - patch_size) / 2 - top[:, None]
    right = left[None, :] - (width - patch_size) / 2
    return np.arctan2(up, right).ravel(), np.hypot(up, right).ravel()


def _make_axes():
    pyplot = import_pyplot()
    _, axes = pyplot.subplots(1, 2, figsize=(8.6, 3.8), layout="constrained")
    return axes


def _check_axes(axes):
    axes = np.ravel(axes)
    if len(axes) != 2:
        raise ValueError(
            f"axes must be two, one for theta and one for r, got {len(axes)}."
        )
    return axes
