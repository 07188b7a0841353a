"""A fitted bank made smaller, and the threshold that goes with it."""

from dataclasses import replace

import numpy as np

from skpatchsvdd._bank import join_banks, rows_to_keep
from skpatchsvdd._feedback import apply_feedback, measure_again
from skpatchsvdd._scoring import (
    find_folds,
    fold_bank,
    index_banks,
    measure_variations,
    score_rows,
)

# Seed of the projections in which rows are compared: the same bank each time.
_SEED = 0


def reduce_bank(fitted, calibration, bank_size, context):
    """Keep a covering part of a bank, and score all training images against it.

    `bank_size` is the number of rows of each scale, or a fraction of them. Distances to
    fewer rows are longer: what is usual, the limits of known defects and the scores
    that thresholds come from are measured anew.
    """
    shapes = [index.view_bank().rows.shape for index in fitted.indexes]
    sizes = [rows_to_keep(bank_size, *shape) for shape in shapes]
    pairs = list(zip(fitted.indexes, sizes, strict=True))
    if all(len(index) <= size for index, size in pairs):
        return fitted, calibration
    if calibration.held_out is not None:
        raise ValueError(
            "bank_size cannot reduce the bank of a model that was calibrated: the "
            "threshold for a smaller one needs the images again. Pass bank_size to "
            "fit, and calibrate again."
        )
    if not holds_all(fitted, calibration, context):
        raise ValueError(
            "bank_size cannot reduce a bank that holds a part of the training images' "
            "patches already: the threshold for a smaller one could not be found. Pass "
            "bank_size to fit instead."
        )

    rng, feedback = np.random.RandomState(_SEED), fitted.feedback
    context = replace(context, options=replace(context.options, bank_size=bank_size))
    whole = fitted.change(feedback=None)
    folded = fold_bank(whole, [], context)
    _, folds = find_folds(folded.owners, folded.n_folds)
    pairs = zip(folded.indexes, sizes, strict=True)
    banks = [
        join_banks([index.bank()], size, rng, context.device, folds)
        for index, size in pairs
    ]
    indexes = index_banks(banks, context)
    samples = folded.variations and [x.sample for x in folded.variations]
    variations = measure_variations(samples, indexes, context)
    reduced = folded.change(indexes=indexes, variations=variations)
    before = score_rows(whole, context.load(whole), context.report)[0]
    after = score_rows(folded, context.load(reduced), context.report)[0]
    # Those of which not all patches are there do not calibrate.
    factors = np.where(before > 0, after / before, 1.0)
    calibration = calibration.change(plain=calibration.plain * factors)
    if feedback is None:
        return reduced, calibration
    if feedback.defects is not None:
        defects = measure_again(feedback.defects, reduced, context)
        feedback = feedback.change(defects=defects)
    return apply_feedback(reduced, reduced, calibration, feedback, context)


def holds_all(fitted, calibration, context):
    """Whether a bank holds all patches of the images that calibrate."""
    dense = context.load(fitted).encoder
    scored = calibration.calibrates
    for index, cells in zip(fitted.indexes, dense.cells, strict=True):
        held = np.bincount(index.view_bank().places[:, 0], minlength=len(scored))
        if (held[scored] < len(cells)).any():
            return False
    return True
