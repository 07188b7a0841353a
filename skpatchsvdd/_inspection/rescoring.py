"""The scores of training images after more is known of defects."""

from dataclasses import replace

import numpy as np
import torch

# How many times what it is without known defects the threshold may be with them: what
# nobody has seen yet would be missed below a higher one.
_RISE = 1.25
# How cautious to be, one after the other, until it is not: at the last, nothing but
# copies is raised.
_CAUTIONS = (1.0, 1.5, 2.25, 4.0, 1e6)


def rescore_cautiously(
    fitted, calibration, contamination, inspect, report, is_plain=True, is_raised=True
):
    """Score training images by known defects that raise the threshold little.

    One normal image that is like a known defect can raise it, where it is the lowest of
    all scores, by as much as the defect is raised.

    Parameters
    ----------
    fitted : FittedBank
        With what is known.
    calibration : Calibration
        With the scores so far.
    contamination : "auto" or float
        What the threshold is chosen by.
    inspect : callable
        ``inspect(fitted)`` gives an `Inspector` of a `FittedBank`.
    report : Report
        Says how far it has come.
    is_plain : bool
        Whether the scores so far know of no defects.
    is_raised : bool
        Whether defects are known that the scores so far do not count with.

    Returns
    -------
    fitted : FittedBank
        Whose known defects count as much as that allows.
    calibration : Calibration
        With the scores by these.
    """
    plain = calibration
    if not is_plain:
        without = fitted.change(defects=None)
        scores = rescore(
            plain.scores, without, inspect(without), report, is_raised=False
        )
        plain = plain.with_scores(scores)
    if fitted.defects is None:
        return fitted, plain
    # Without a name, no word on too few images: that is said later.
    allowed = _RISE * plain.offset(contamination, name=None)
    # No less cautious than the scores of images whose patches are not all there.
    least = 1.0 if is_raised else fitted.defects.caution
    for caution in (x for x in _CAUTIONS if x >= least):
        defects = replace(fitted.defects, caution=caution)
        careful = fitted.change(defects=defects)
        scores = rescore(plain.scores, careful, inspect(careful), report, is_raised)
        found = plain.with_scores(scores)
        if found.offset(contamination, name=None) >= allowed:
            break
    return careful, found


def rescore(scores, fitted, inspector, report, is_raised=True):
    """Return the scores that training images have now that more defects are known.

    Images all of whose patches the bank holds are scored by these, each without its own
    ones. Of others no more is known than by how much the patches that the bank has kept
    are raised at most: their scores are lowered by that, so that thresholds stay on the
    safe side.

    Parameters
    ----------
    scores : ndarray of shape (n_images,)
        The scores so far.
    fitted : FittedBank
        With the defects.
    inspector : Inspector
        That of `fitted`.
    report : Report
        Says how far it has come.
    is_raised : bool
        Whether defects were learnt that the scores so far do not count with.

    Returns
    -------
    scores : ndarray of shape (n_images,)
    """
    dense = inspector.encoder
    banks = [index.view_bank() for index in fitted.indexes]
    orders = [np.lexsort((x.places[:, 1], x.places[:, 0])) for x in banks]
    counts = [np.bincount(x.places[:, 0], minlength=len(scores)) for x in banks]
    starts = [np.append(0, np.cumsum(count)) for count in counts]
    sizes = [len(cells) for cells in dense.cells]
    pairs = zip(counts, sizes, strict=True)
    is_whole = np.all([count == size for count, size in pairs], axis=0)
    rescored = scores * (_bound_raises(fitted, inspector) if is_raised else 1)
    whole = np.flatnonzero(is_whole)
    with report.side_progress("scoring images learnt from", len(whole)) as progress:
        for start in range(0, len(whole), dense.batch_size):
            some = whole[start : start + dense.batch_size]
            features = []
            for k, own in enumerate(zip(banks, orders, starts, strict=True)):
                bank, order, at = own
                rows = [bank.rows[order[at[i] : at[i + 1]]] for i in some]
                features.append(_lay_out(np.stack(rows), dense, k))
            owners = [int(fitted.owners[i]) for i in some]
            rescored[some] = inspector.score_features(features, owners)
            progress(start + len(some))
    return rescored


def _lay_out(rows, dense, scale):
    """Return the features of images' patches on their grid, (n, rows, cols, D)."""
    height, width = dense.grids[scale]
    shape = len(rows), height * width, rows.shape[2]
    features = np.zeros(shape, dtype=np.float32)
    features[:, dense.cells[scale]] = rows
    features = torch.from_numpy(features).to(dense.device)
    return features.unflatten(1, (height, width))


def _bound_raises(fitted, inspector):
    """Return by which factor the scores of images are raised at most, (n_images,)."""
    by_owner = fitted.defects.bound_raises(fitted.owners.max() + 1)
    raises = by_owner[:, fitted.owners]  # (n_scales, n_images)
    if fitted.aggregation == "sum":
        return raises.max(axis=0)
    weights = np.array(inspector.encoder.scale_weights)[:, None]
    return (raises**weights).prod(axis=0)
