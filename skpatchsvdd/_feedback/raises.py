"""What known defects make of the scores of training images."""

import numpy as np

from skpatchsvdd._scoring import score_rows


def raise_scores(plain, fitted, inspector, report):
    """Return the scores that training images have by what is known of defects.

    Images all of whose patches the bank holds are scored by these, each without its own
    ones, and their plain scores change as much as that of the patches does. Of others
    no more is known than by how much the patches that the bank has kept are raised at
    most: their scores are lowered by that, so that thresholds stay on the safe side.

    Parameters
    ----------
    plain : ndarray of shape (n_images,)
        Their scores without feedback.
    fitted : FittedBank
        With what is known of defects.
    inspector : Inspector
        That of `fitted`.
    report : Report
        Says how far it has come.

    Returns
    -------
    raised : ndarray of shape (n_images,)
        No higher than `plain`.
    """
    abnormal, raised = score_rows(fitted, inspector, report)
    # Where patches give the plain scores, what they give is raised to the last bit.
    is_same = np.isclose(-abnormal, plain, rtol=1e-5)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(abnormal > 0, raised / abnormal, 1.0)
    factors = np.where(np.isnan(abnormal), _bound_raises(fitted, inspector), factors)
    scores = np.where(is_same, -raised, plain * factors)
    return np.minimum(scores, plain)


def _bound_raises(fitted, inspector):
    """Return by which factor the scores of images are raised at most, (n_images,)."""
    by_owner = fitted.feedback.defects.bound_raises(fitted.owners.max() + 1)
    raises = by_owner[:, fitted.owners]  # (n_scales, n_images)
    if fitted.aggregation == "sum":
        return raises.max(axis=0)
    weights = np.array(inspector.encoder.scale_weights)[:, None]
    return (raises**weights).prod(axis=0)
