"""Pictures of images beside their anomaly maps."""

import os

import numpy as np
from sklearn.utils.validation import check_consistent_length

from skpatchsvdd._images import read_image
from skpatchsvdd._plotting.axes import import_pyplot
from skpatchsvdd._utils import maps_of, offset_of


class AnomalyMapDisplay:
    """Images, true masks where they are known, and anomaly maps, side by side.

    All maps share one colour scale, so that a normal image looks as calm as it scores.
    Make one with `from_estimator` or `from_predictions`. Drawing needs matplotlib:
    ``pip install skpatchsvdd[plot]``.

    Parameters
    ----------
    images : array-like of shape (n_images, height, width[, n_channels]) or list
        The images, as bytes or on the 0..1 scale, or paths of their files.
    maps : array-like of shape (n_images, height, width) or list
        Their anomaly maps.
    masks : array-like of shape (n_images, height, width) or list, default=None
        True at abnormal pixels.
    titles : list of str, default=None
        A line over each image.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure drawn on.
    axes_ : ndarray of matplotlib.axes.Axes, of shape (n_images, n_columns)
        One row for each image.

    Examples
    --------
    >>> from skpatchsvdd import PatchSVDD
    >>> from skpatchsvdd.datasets import make_textures
    >>> from skpatchsvdd.plotting import AnomalyMapDisplay
    >>> normal = make_textures(4, image_size=48, random_state=0)
    >>> test = make_textures(2, image_size=48, anomaly_fraction=0.5, random_state=1)
    >>> est = PatchSVDD(patch_size=32, max_iter=0, random_state=0).fit(normal.images)
    >>> display = AnomalyMapDisplay.from_estimator(est, test.images, masks=test.masks)
    >>> display.axes_.shape
    (2, 3)
    """

    def __init__(self, images, maps, *, masks=None, titles=None):
        self.images = images
        self.maps = maps
        self.masks = masks
        self.titles = titles

    @classmethod
    def from_estimator(
        cls, estimator, X, *, masks=None, titles=None, axes=None, **options
    ):
        """Compute the maps of images with a fitted estimator and draw them.

        Parameters
        ----------
        estimator : object
            Anything fitted that has `anomaly_map`, or a pipeline that ends in it and
            leaves the size of images as it is.
        X : array-like of shape (n_images, height, width[, n_channels]) or list
            The images.
        masks, titles, axes : object
            As for `from_predictions`.
        **options : dict
            `cmap` and `vmax`, as for `plot`. Without `vmax`, the threshold of the
            estimator is the middle of the colours, so that normal images look calm.

        Returns
        -------
        display : AnomalyMapDisplay
        """
        maps = maps_of(estimator, X)
        offset = offset_of(estimator)
        if options.get("vmax") is None and offset is not None and offset < 0:
            options["vmax"] = -2 * offset
        return cls.from_predictions(
            X, maps, masks=masks, titles=titles, axes=axes, **options
        )

    @classmethod
    def from_predictions(
        cls, X, maps, *, masks=None, titles=None, axes=None, **options
    ):
        """Draw images and their maps.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels]) or list
            The images.
        maps : array-like of shape (n_images, height, width) or list
            Their anomaly maps.
        masks : array-like of shape (n_images, height, width) or list, default=None
            True at abnormal pixels: drawn in a column of their own and outlined on
            the maps.
        titles : list of str, default=None
            A line over each image.
        axes : ndarray of matplotlib.axes.Axes, default=None
            Axes to draw on, one row for each image; None makes a new figure.
        **options : dict
            `cmap` and `vmax`, as for `plot`.

        Returns
        -------
        display : AnomalyMapDisplay
        """
        check_consistent_length(X, maps, masks, titles)
        return cls(X, maps, masks=masks, titles=titles).plot(axes=axes, **options)

    def plot(self, *, axes=None, cmap="inferno", vmax=None):
        """Draw all images.

        Parameters
        ----------
        axes : ndarray of matplotlib.axes.Axes, default=None
            Axes to draw on, one row for each image; None makes a new figure.
        cmap : str, default="inferno"
            Colours of the maps.
        vmax : float, default=None
            Value from which on maps have the brightest colour; ``-2 * offset_``, the
            default of `from_estimator`, shows all that is worth an alarm in the
            brighter half. None is the highest value.

        Returns
        -------
        self : AnomalyMapDisplay
        """
        self.axes_ = self._make_axes() if axes is None else np.atleast_2d(axes)
        self.figure_ = self.axes_.flat[0].figure
        heads = ["image", "anomaly map"]
        if self.masks is not None:
            heads.insert(1, "true mask")
        if vmax is None:
            vmax = max(float(np.max(one_map)) for one_map in self.maps)
        for i, row in enumerate(self.axes_):
            self._plot_row(i, row, cmap, vmax)
            for axis, head in zip(row, heads, strict=True):
                axis.set_xticks([])
                axis.set_yticks([])
                axis.set_title(head if i == 0 else "", fontsize="small")
            if self.titles is not None:
                row[0].set_ylabel(self.titles[i], fontsize="small")
        return self

    def _plot_row(self, i, row, cmap, vmax):
        image = self.images[i]
        is_path = isinstance(image, str | os.PathLike)
        image = read_image(image) if is_path else np.asarray(image)
        if image.ndim == 3 and image.shape[2] != 3:
            image = image.mean(axis=2)
        top = (
            255 if image.dtype == np.uint8 else 65535 if image.dtype.kind == "u" else 1
        )
        row[0].imshow(np.clip(image / top, 0, 1), cmap="gray", vmin=0, vmax=1)
        row[-1].imshow(self.maps[i], cmap=cmap, vmin=0, vmax=vmax)
        if self.masks is not None:
            mask = np.asarray(self.masks[i]) != 0
            row[1].imshow(mask, cmap="gray", vmin=0, vmax=1)
            if mask.any() and not mask.all():
                row[-1].contour(mask, levels=[0.5], colors="cyan", linewidths=0.9)

    def _make_axes(self):
        n_rows, n_cols = len(self.maps), 2 if self.masks is None else 3
        size = (2.2 * n_cols, 2.1 * n_rows)
        _, axes = import_pyplot().subplots(
            n_rows, n_cols, figsize=size, squeeze=False, layout="constrained"
        )
        return axes
