"""The paper's figures of images and of features, each drawn from fits of its own."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paper.embedding import embed_patches
from paper.fits import fit_patch_svdd
from paper.tables import losses_lines, table1_lines

INCHES = 2.6  # of a part of a picture
N_POINTS = 1000
N_EMBEDDED = 20


@dataclass(frozen=True)
class View:
    """A figure with a row for each category.

    Parameters
    ----------
    make_lines : callable
        ``make_lines(choice)`` gives the lines that are fitted.
    count_columns : callable
        ``count_columns(lines)`` says how many parts a row has.
    draw_row : callable
        ``draw_row(axes, images, lines, fit)`` draws a row of what ``fit(line)`` gives.
    caption : str
        What its colours mean.
    """

    make_lines: Callable
    count_columns: Callable
    draw_row: Callable
    caption: str


def draw_view(view, images, lines, seed, device, file):
    """Fit to each category, draw what the fits see into a file, and say what is done.

    Parameters
    ----------
    view : View
        What to draw.
    images : list of Images
        The categories.
    lines : list of Line
        What to fit to each.
    seed : int
        Of the fits.
    device : torch.device
        Where to compute.
    file : str or path
        The picture.

    Returns
    -------
    failures : list of str
        Which categories are missing, and why.
    """
    from matplotlib.figure import Figure

    n_columns = view.count_columns(lines)
    size = (INCHES * n_columns, INCHES * len(images))
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(len(images), n_columns, squeeze=False)
    failures = []
    for one, axes in zip(images, rows, strict=True):

        def fit(line, one=one):
            train, _ = one.arrays()
            est, undone, seconds = fit_patch_svdd(line, seed, train, device)
            end = ", training undone" if undone else ""
            print(f"{one.category}, {line.label}: {seconds:.1f} s{end}", flush=True)
            return est

        axes[0].set_ylabel(one.category)
        try:
            view.draw_row(axes, one, lines, fit)
        except Exception as error:
            failures.append(f"{one.category}: {type(error).__name__}: {error}")
            print(f"FAILED {failures[-1]}", flush=True)
        one.forget()
    for ax in rows.flat:
        ax.set(xticks=[], yticks=[])
    figure.supxlabel(view.caption, fontsize="small")
    if len(failures) < len(images):
        figure.savefig(file, dpi=120)
    return failures


def draw_maps(axes, images, lines, fit):
    """Draw an image with its defect outlined, its map of each scale, and the joined.

    It is the abnormal one of median score: neither the best nor the worst. White is a
    score of zero, the darkest red the largest of each map.
    """
    est = fit(lines[0])
    _, test = images.arrays()
    abnormal = np.flatnonzero(test.labels == -1)
    order = np.argsort(est.score_samples(test.images[abnormal]))
    chosen = abnormal[order[len(order) // 2]]
    image = test.images[chosen]
    largest = np.iinfo(image.dtype).max if image.dtype.kind == "u" else 1
    axes[0].imshow(image / largest, cmap="gray", vmin=0, vmax=1)
    if test.masks is not None:
        axes[0].contour(test.masks[chosen], levels=[0.5], colors="red", linewidths=1)
    for ax, scale in zip(axes[1:], (*est.patch_sizes_, None), strict=True):
        ax.imshow(est.anomaly_map(image[None], scale)[0], cmap="Reds", vmin=0)
        ax.set_title("joined" if scale is None else f"K={scale}", fontsize="small")


def draw_features(axes, images, lines, fit):
    """Draw t-SNE of the features of K=64: colours are directions, sizes distances."""
    train, _ = images.arrays()
    for ax, line in zip(axes, lines, strict=True):
        est = fit(line)
        ax.set_title(line.label, fontsize="small")
        try:
            x = embed_patches(est, train[:N_EMBEDDED], N_POINTS, random_state=0)
        except ValueError:  # all the same
            ax.text(0.5, 0.5, "collapsed", ha="center", va="center")
            continue
        sizes = 1 + 15 * x.r / x.r.max()
        ax.scatter(*x.points.T, c=x.theta, s=sizes, cmap="hsv", linewidths=0)
        ax.set_aspect("equal", adjustable="datalim")


VIEWS = {
    "maps": View(
        table1_lines,
        lambda lines: 4,
        draw_maps,
        "outlined: the defect; white: a score of 0; darkest: the largest of each map",
    ),
    "tsne": View(
        losses_lines,
        len,
        draw_features,
        "colours: directions from the image's centre; sizes: distances from it",
    ),
}
