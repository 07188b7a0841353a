"""Rows of tables: means over seeds and categories, beside the paper's."""

from collections import Counter

import numpy as np

from paper.published import MEAN
from paper.tables import QUALITY

SHARED_MEAN = "mean, paper's classes"


def make_rows(fits, lines, columns):
    """Average over the seeds of each category and line.

    Parameters
    ----------
    fits : list of dict
        With "category", "class", "label", and the figures of one fit.
    lines : list of Line
        The table's lines.
    columns : tuple of str
        Figures to average.

    Returns
    -------
    rows : list of dict
        The figures, where the paper has any "paper ..." too, and None where there are
        none.
    """
    rows = []
    for category in dict.fromkeys(fit["category"] for fit in fits):
        of_category = [fit for fit in fits if fit["category"] == category]
        for line in lines:
            chosen = [fit for fit in of_category if fit["label"] == line.label]
            if chosen:
                names = {"category": category, "setting": line.label}
                theirs = line.paper.get(chosen[0]["class"], {})
                rows.append(names | average(chosen, columns) | beside(theirs, columns))
    return rows


def make_means(rows, lines, columns):
    """Average rows over categories: all, and those that the paper has too.

    A category that lacks a line, because a fit failed, counts for none of the lines. A
    line that lacks a figure where others have it has no mean of it.
    """
    settings = dict.fromkeys(row["setting"] for row in rows)
    counts = Counter(row["category"] for row in rows)
    rows = [row for row in rows if counts[row["category"]] == len(settings)]
    known = find_known(rows, columns + tuple(beside({}, columns)))
    means = []
    for line in lines:
        own = [row for row in rows if row["setting"] == line.label]
        if not own:
            continue
        names = {"category": MEAN, "setting": line.label}
        theirs = beside(line.paper.get(MEAN, {}), columns)
        means.append(names | average_rows(own, columns, known) | theirs)
        theirs = tuple(theirs)
        shared = [row for row in own if any(row[x] is not None for x in theirs)]
        if shared:  # theirs over the very same classes
            names["category"] = SHARED_MEAN
            means.append(names | average_rows(shared, columns + theirs, known))
    return means


def find_known(rows, columns):
    """Return the categories in which any line has a figure, for each column."""
    return {
        name: {row["category"] for row in rows if row[name] is not None}
        for name in columns
    }


def average(fits, columns):
    """Return how many fits there are, their means, and the spread of the quality."""
    result = {"fits": len(fits)}
    for name in columns:
        values = [fit.get(name) for fit in fits]
        result[name] = mean_of_all(values)
        if name in QUALITY and len(fits) > 1:
            is_known = result[name] is not None
            result[f"{name} sd"] = float(np.std(values, ddof=1)) if is_known else None
    return result


def average_rows(rows, columns, known):
    """Return means over rows, and how many fits are behind them."""
    result = {"fits": sum(row["fits"] for row in rows)}
    for name in columns:
        values = [row[name] for row in rows if row["category"] in known[name]]
        result[name] = mean_of_all(values)
    return result


def mean_of_all(values):
    """Return the mean, or None where a value lacks: the others' mean would mislead."""
    return float(np.mean(values)) if values and None not in values else None


def beside(theirs, columns):
    """Return the paper's figures by the names of columns."""
    return {f"paper {name}": theirs.get(name) for name in columns}


def printable(rows):
    """Give all rows the same columns, without those that are empty everywhere."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    used = [name for name in names if any(row.get(name) is not None for row in rows)]
    used = [name for name in used if _ours(name) in used]
    # The spread and then the paper's figure right of ours.
    used.sort(key=lambda name: (names.index(_ours(name)), name.startswith("paper ")))
    return [{name: _text(name, row.get(name)) for name in used} for row in rows]


def _ours(name):
    return name.removeprefix("paper ").removesuffix(" sd")


def _text(name, value):
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    rated = any(word in name for word in (*QUALITY, "undone"))
    if rated:
        return f"{value:.3f}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
