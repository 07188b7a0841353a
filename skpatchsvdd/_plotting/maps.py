"""Pictures of images beside their anomaly maps."""

import numpy as np
from scipy import ndimage
from sklearn.utils.validation import check_consistent_length

from skpatchsvdd._images import list_images, read_display
from skpatchsvdd._plotting.axes import import_pyplot, read_learnt
from skpatchsvdd._utils import maps_of, masks_of, offset_of

# Regions that are numbered in an image, those with the highest peaks.
_N_NUMBERED = 10


class AnomalyMapDisplay:
    """Images, true masks where they are known, and anomaly maps, side by side.

    What was found is outlined in the images and numbered, the most abnormal first.
    Where the threshold is known, maps lie over the images in the colours of the report:
    nothing up to half the threshold, yellow at it, red from twice as much on. All share
    one scale, so that a normal image looks as calm as it scores; maps of single patch
    sizes have one for each size. Make one with `from_estimator` or
    `from_predictions`. Drawing needs matplotlib: ``pip install matplotlib``.

    Parameters
    ----------
    images : array-like of shape (n_images, height, width[, n_channels]) or list
        The images, as bytes or on the 0..1 scale, or paths of their files.
    maps : array-like of shape (n_images, height, width) or list
        Their anomaly maps.
    masks : array-like of shape (n_images, height, width) or list, default=None
        True at abnormal pixels: drawn in a column of their own and outlined on the
        maps.
    titles : list of str, default=None
        A line beside each image.
    scale_maps : dict of int to maps, default=None
        By patch size, the maps of that size alone, each like `maps`: a column for each.
    found : array-like of shape (n_images, height, width) or list, default=None
        True at pixels that were found to be abnormal: outlined in the images.
    threshold : float, default=None
        The value of maps from which on a pixel is worth an alarm, ``-offset_``.

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

    def __init__(
        self,
        images,
        maps,
        *,
        masks=None,
        titles=None,
        scale_maps=None,
        found=None,
        threshold=None,
    ):
        self.images = images
        self.maps = maps
        self.masks = masks
        self.titles = titles
        self.scale_maps = scale_maps
        self.found = found
        self.threshold = threshold

    @classmethod
    def from_estimator(cls, estimator, X, *, scales=None, **options):
        """Compute the maps of images with a fitted estimator and draw them.

        Parameters
        ----------
        estimator : object
            Anything fitted that has `anomaly_map`, or a pipeline that ends in it and
            leaves the size of images as it is.
        X : array-like of shape (n_images, height, width[, n_channels]) or list
            The images.
        scales : "all" or list, default=None
            Names, of those in `scales_`, whose own maps are drawn beside the
            joined one. Images are inspected once more for each.
        **options : dict
            `masks`, `titles`, `axes`, `cmap` and `vmax`, as for `from_predictions`.

        Returns
        -------
        display : AnomalyMapDisplay
        """
        scales = [] if scales is None else _check_scales(scales, estimator)
        maps = maps_of(estimator, X)
        offset = offset_of(estimator)
        return cls.from_predictions(
            X,
            maps,
            scale_maps={scale: maps_of(estimator, X, scale=scale) for scale in scales},
            found=masks_of(estimator, X),
            threshold=-offset if offset is not None and offset < 0 else None,
            **options,
        )

    @classmethod
    def from_predictions(cls, X, maps, *, axes=None, cmap=None, vmax=None, **parts):
        """Draw images and their maps.

        Parameters
        ----------
        X : array-like of shape (n_images, height, width[, n_channels]) or list
            The images.
        maps : array-like of shape (n_images, height, width) or list
            Their anomaly maps.
        axes, cmap, vmax : object
            As for `plot`.
        **parts : dict
            `masks`, `titles`, `scale_maps`, `found` and `threshold`, as for the class.

        Returns
        -------
        display : AnomalyMapDisplay
        """
        display = cls(list_images(X), maps, **parts)
        of_images = [getattr(display, name) for name in ("masks", "titles", "found")]
        by_scale = (display.scale_maps or {}).values()
        check_consistent_length(display.images, maps, *of_images, *by_scale)
        return display.plot(axes=axes, cmap=cmap, vmax=vmax)

    def plot(self, *, axes=None, cmap=None, vmax=None):
        """Draw all images.

        Parameters
        ----------
        axes : ndarray of matplotlib.axes.Axes, default=None
            Axes to draw on, one row for each image; None makes a new figure.
        cmap : str, default=None
            Colours of the maps, which then do not lie over the images. None means those
            of the report, and "inferno" for maps without a threshold, as those of
            single patch sizes are.
        vmax : float, default=None
            Value from which on maps have the brightest colour. None is twice the
            threshold or, without one, the highest value; for the maps of single patch
            sizes it is always the highest value of the size.

        Returns
        -------
        self : AnomalyMapDisplay
        """
        masks = [] if self.masks is None else ["true mask"]
        scales = [f"patches of {scale}" for scale in self.scale_maps or {}]
        heads = ["image", *masks, "anomaly map", *scales]
        self.axes_ = _make_axes(axes, (len(self.maps), len(heads)))
        self.figure_ = self.axes_.flat[0].figure
        columns = [self.maps, *(self.scale_maps or {}).values()]
        tops = [max(float(np.max(x)) for x in maps) for maps in columns]
        if vmax is not None or self.threshold is not None:
            tops[0] = 2 * self.threshold if vmax is None else vmax
        looks = [cmap or "inferno"] * len(columns)
        if self.threshold is not None and cmap is None and vmax is None:
            looks[0] = None
        for i, row in enumerate(self.axes_):
            self._plot_image(i, row)
            for axis, *of_column in zip(
                row[-len(columns) :], columns, looks, tops, strict=True
            ):
                self._plot_map(i, axis, *of_column)
            for axis, head in zip(row, heads, strict=True):
                axis.set_xticks([])
                axis.set_yticks([])
                axis.set_title(head if i == 0 else "", fontsize="small")
            if self.titles is not None:
                row[0].set_ylabel(self.titles[i], fontsize="small")
        if looks[0] is None and axes is None:  # a bar would take room of other axes
            self._plot_legend(self.axes_[:, -len(columns)])
        return self

    def _plot_image(self, i, row):
        """Draw an image and, beside it, its mask."""
        self._show(i, row[0])
        if self.found is not None:
            _outline(row[0], np.asarray(self.found[i]) != 0, np.asarray(self.maps[i]))
        if self.masks is not None:
            mask = np.asarray(self.masks[i]) != 0
            row[1].imshow(mask, cmap="gray", vmin=0, vmax=1)

    def _plot_map(self, i, axis, maps, cmap, vmax):
        """Draw the map of an image, and the outline of its mask."""
        if cmap is None:
            self._show(i, axis)
        axis.imshow(maps[i], cmap=cmap or _make_colours(), vmin=0, vmax=vmax)
        if self.masks is not None:
            mask = np.asarray(self.masks[i]) != 0
            if mask.any() and not mask.all():
                axis.contour(mask, levels=[0.5], colors="cyan", linewidths=0.9)

    def _show(self, i, axis):
        """Show an image in the pixels of its map, which may be of another size."""
        height, width = np.shape(self.maps[i])
        frame = -0.5, width - 0.5, height - 0.5, -0.5
        axis.imshow(read_display(self.images[i]), extent=frame)

    def _plot_legend(self, axes):
        """Draw what the colours of maps mean."""
        bar = self.figure_.colorbar(
            axes[0].images[-1], ax=list(axes), location="bottom", shrink=0.9, aspect=12
        )
        bar.set_ticks([factor * self.threshold for factor in (0.5, 1, 2)])
        bar.set_ticklabels(["0.5", "1", "2"])
        bar.set_label("times the threshold", fontsize="small")


def _outline(axis, mask, one_map):
    """Draw a light line over a dark one around a mask, and numbers of its regions."""
    if not mask.any():
        return
    padded = np.pad(mask, 1)  # so that lines close at the edges of an image
    rows, columns = (np.arange(-1, n + 1) for n in mask.shape)
    for color, width in (("#141414", 2.2), ("white", 1.0)):
        axis.contour(
            columns, rows, padded, levels=[0.5], colors=color, linewidths=width
        )
    labels, _ = ndimage.label(mask, structure=np.ones((3, 3)))
    regions = ndimage.find_objects(labels)
    peaks = [one_map[box].max() for box in regions]
    look = {"fc": "#141414", "ec": "none", "pad": 1.5}
    for number, i in enumerate(np.argsort(peaks)[::-1][:_N_NUMBERED], 1):
        top, left = (part.start for part in regions[i])
        place = max(left - 1, 0), max(top - 1, 0)
        axis.text(*place, number, color="w", size="x-small", va="bottom", bbox=look)
    axis.set(xlim=(-0.5, mask.shape[1] - 0.5), ylim=(mask.shape[0] - 0.5, -0.5))


def _make_colours():
    """Return the colours of the report, clear up to half the threshold."""
    from matplotlib.colors import LinearSegmentedColormap

    places = [(0, (1, 0.78, 0, 0)), (0.25, (1, 0.78, 0, 0)), (0.5, (1, 0.78, 0, 0.65))]
    places.append((1, (1, 0, 0, 0.65)))
    return LinearSegmentedColormap.from_list("times the threshold", places)


def _check_scales(scales, estimator):
    """Return the scales whose maps are asked for."""
    known = read_learnt(estimator, "scales_")
    if isinstance(scales, str) and scales == "all":
        return known
    if not isinstance(scales, list | tuple) or not set(scales) <= set(known):
        raise ValueError(
            f'scales must be "all", None or a list of some of {known}, got {scales!r}.'
        )
    return scales


def _make_axes(axes, shape):
    """Return axes of a shape, those given or, of None, those of a new figure."""
    if axes is None:
        size = (2.2 * shape[1], 2.1 * shape[0])
        _, axes = import_pyplot().subplots(
            *shape, figsize=size, squeeze=False, layout="constrained"
        )
    axes = np.atleast_2d(axes)
    if axes.shape != shape:
        raise ValueError(
            f"axes must be of shape {shape}, a row for each image and a column for "
            f"each of its pictures, got {axes.shape}."
        )
    return axes
