"""Scores of images whose patches are all in a bank, by these patches."""

import numpy as np
import torch


def score_rows(fitted, inspector, report):
    """Score the images all of whose patches a bank holds, each without its own ones.

    Parameters
    ----------
    fitted : FittedBank
        Whose images are scored.
    inspector : Inspector
        Which scores them: of this bank, or of a part of it.
    report : Report
        Says how far it has come.

    Returns
    -------
    plain, raised : ndarray of shape (n_images,)
        How abnormal each image is, without feedback and by what it raises; NaN for
        images some of whose patches are not there.
    """
    dense, n_images = inspector.encoder, len(fitted.known)
    banks = [index.view_bank() for index in fitted.indexes]
    orders = [np.lexsort((x.places[:, 1], x.places[:, 0])) for x in banks]
    counts = [np.bincount(x.places[:, 0], minlength=n_images) for x in banks]
    starts = [np.append(0, np.cumsum(count)) for count in counts]
    sizes = [len(cells) for cells in dense.cells]
    pairs = zip(counts, sizes, strict=True)
    whole = np.flatnonzero(np.all([count == size for count, size in pairs], axis=0))
    scores = np.full((2, n_images), np.nan)
    with report.side_progress("scoring images learnt from", len(whole)) as progress:
        for start in range(0, len(whole), dense.batch_size):
            some = whole[start : start + dense.batch_size]
            features = []
            for k, own in enumerate(zip(banks, orders, starts, strict=True)):
                bank, order, at = own
                rows = [bank.rows[order[at[i] : at[i + 1]]] for i in some]
                features.append(_lay_out(np.stack(rows), dense, k))
            owners = [int(fitted.owners[i]) for i in some]
            pictures = None
            if fitted.pictures is not None:
                pictures = dense.move(fitted.pictures[some])
            scores[:, some] = inspector.score_features(features, owners, pictures)
            progress(start + len(some))
    return scores


def _lay_out(rows, dense, scale):
    """Return the features of images' patches on their grid, (n, rows, cols, D)."""
    height, width = dense.grids[scale]
    shape = len(rows), height * width, rows.shape[2]
    features = np.zeros(shape, dtype=np.float32)
    features[:, dense.cells[scale]] = rows
    features = torch.from_numpy(features).to(dense.device)
    return features.unflatten(1, (height, width))
