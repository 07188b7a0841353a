"""A fitted bank made smaller, and the threshold that goes with it."""

from dataclasses import replace

import numpy as np

from skpatchsvdd._bank import Variation, join_banks, rows_to_keep
from skpatchsvdd._inspection.corrections import list_typical
from skpatchsvdd._inspection.defect_patches import measure_again
from skpatchsvdd._inspection.fitted import index_banks
from skpatchsvdd._inspection.rescoring import rescore

# Seed of the projections in which rows are compared: the same bank each time.
_SEED = 0


def reduce_bank(fitted, calibration, bank_size, encoder, context):
    """Keep a covering part of a bank, and score all training images against it.

    Distances to fewer rows are longer: what is usual, the limits of known defects and
    the scores that thresholds come from are measured anew.

    Parameters
    ----------
    fitted : FittedBank
        With all patches of all images.
    calibration : Calibration
        That of its images.
    bank_size : int or float
        Rows of each scale, or a fraction of them.
    encoder : PatchEncoder
        The trained encoder.
    context : FitContext
        How to do it.

    Returns
    -------
    fitted : FittedBank
    calibration : Calibration
    """
    sizes = [_count_kept(index, bank_size) for index in fitted.indexes]
    pairs = list(zip(fitted.indexes, sizes, strict=True))
    if all(len(index) <= size for index, size in pairs):
        return fitted, calibration
    if not holds_all(fitted, encoder, context):
        raise ValueError(
            "bank_size cannot reduce a bank that holds a part of the training images' "
            "patches already: the threshold for a smaller one could not be found. Pass "
            "bank_size to fit instead."
        )
    rng = np.random.RandomState(_SEED)
    banks = [
        join_banks([index.bank()], size, rng, context.device) for index, size in pairs
    ]
    indexes = index_banks(banks, context)
    variations, defects = fitted.variations, fitted.defects
    if variations is not None:
        measured = zip(variations, indexes, strict=True)
        variations = [Variation(x.sample, i, context.device) for x, i in measured]
    if defects is not None:
        defects = measure_again(defects, indexes, context)
    reduced = fitted.change(indexes=indexes, variations=variations, defects=defects)
    inspector = reduced.inspector(encoder, context.device)
    if fitted.harmless is not None:
        typical = list_typical(inspector)
        reduced = reduced.change(harmless=replace(fitted.harmless, typical=typical))
        inspector = reduced.inspector(encoder, context.device)
    scores = rescore(
        calibration.scores, fitted, inspector, context.report, is_raised=False
    )
    return reduced, calibration.with_scores(scores)


def _count_kept(index, bank_size):
    rows = index.view_bank().rows
    return rows_to_keep(bank_size, *rows.shape)


def holds_all(fitted, encoder, context):
    """Whether a bank holds all patches of its images, so that it can be reduced.

    But of those that were corrected, which calibrate nothing.
    """
    dense = fitted.inspector(encoder, context.device).encoder
    scored = np.array([x not in fitted.corrected for x in fitted.known])
    for index, cells in zip(fitted.indexes, dense.cells, strict=True):
        held = np.bincount(index.view_bank().places[:, 0], minlength=len(scored))
        if (held[scored] < len(cells)).any():
            return False
    return True
