"""Pictures of tables, where the paper has one."""

import numpy as np

from paper.published import MEAN
from paper.tables import DIMENSIONS, QUALITY

TITLES = {"det": "detection AUROC", "seg": "segmentation AUROC"}


def draw_picture(table, rows, means, lines, file):
    """Draw a table's rows into a file; the tables without a picture are refused."""
    from matplotlib.figure import Figure

    draw = PICTURES[table]
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    draw(axes, rows, [row for row in means if row["category"] == MEAN], lines)
    figure.savefig(file, dpi=120)


def draw_losses(axes, rows, means, lines):
    """Draw a group of bars for each category, and for the mean."""
    rows = rows + means
    categories = list(dict.fromkeys(row["category"] for row in rows))
    width = 0.8 / len(lines)
    for ax, name in zip(axes, QUALITY, strict=True):
        for i, line in enumerate(lines):
            values = [find(rows, category, line, name) for category in categories]
            places = np.arange(len(categories)) + (i - (len(lines) - 1) / 2) * width
            ax.bar(places, values, width, label=line.label)
        ax.set_xticks(range(len(categories)), categories, rotation=45, ha="right")
        ax.set(ylabel=TITLES[name], ylim=(0, 1.02))
    # Above the bars, of which it would hide some.
    handles, labels = axes[0].get_legend_handles_labels()
    figure = axes[0].figure
    figure.legend(handles, labels, loc="outside upper center", ncols=len(lines))


def draw_lambda(axes, rows, means, lines):
    """Draw a curve for each category; places are even, so that 0 has one."""
    for ax, name in zip(axes, QUALITY, strict=True):
        draw_curves(ax, rows, lines, name)
        ax.set_xticks(range(len(lines)), [f"{line.x:g}" for line in lines])
        ax.set(xlabel="λ", ylabel=TITLES[name])
    axes[0].legend(fontsize="small")


def draw_dimension(axes, rows, means, lines):
    """Draw mean quality, and mean intrinsic dimension under its bound y = x."""
    dims = [line.x for line in lines]
    for ax, names in zip(axes, (QUALITY, DIMENSIONS), strict=True):
        for name in names:
            values = [find(means, MEAN, line, name) for line in lines]
            ax.plot(dims, values, marker="o", label=TITLES.get(name, name))
        ax.set_xscale("log", base=2)
        ax.set_xticks(dims, [f"{dim:g}" for dim in dims])
        ax.set(xlabel="D")
    axes[1].set_yscale("log", base=2)
    axes[1].plot(dims, dims, "k--", label="y = x")
    axes[0].set(ylabel="AUROC")
    axes[1].set(ylabel="intrinsic dimension")
    for ax in axes:
        ax.legend()


def draw_curves(ax, rows, lines, name):
    """Draw a figure over the lines of a sweep, one curve a category."""
    for category in dict.fromkeys(row["category"] for row in rows):
        values = [find(rows, category, line, name) for line in lines]
        ax.plot(range(len(lines)), values, marker="o", label=category)


def find(rows, category, line, name):
    """Return one figure, NaN where there is none."""
    for row in rows:
        if (row["category"], row["setting"]) == (category, line.label):
            return np.nan if row[name] is None else row[name]
    return np.nan


PICTURES = {
    "losses": draw_losses,
    "lambda": draw_lambda,
    "dimension": draw_dimension,
}
