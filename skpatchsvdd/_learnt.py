"""What an estimator has learnt, as its attributes: set at once, read as of one moment.

Threads share estimators: some score while another one fits.
"""

import functools

import numpy as np

from skpatchsvdd._utils import computes, make_lock, safe_after_fork

_LEARNING = make_lock()


def set_learnt(estimator, learnt, former=None):
    """Set all that has been learnt at once: no other thread sees a part of it.

    `former` is the bank that this goes on from, if any, which must still be there.
    """
    with _LEARNING:
        before = vars(estimator).copy()  # kept until all is set: dropping takes time
        if former is not None and before["_fitted"] is not former:
            raise RuntimeError(
                "partial_fit must be the only call that fits an estimator, and "
                "another thread has fitted it meanwhile. Nothing was added: call "
                "partial_fit again, one call after the other."
            )
        vars(estimator).update(learnt)


def take_snapshot(estimator):
    """Return a shallow copy, of one moment."""
    copied = object.__new__(type(estimator))
    vars(copied).update(vars(estimator).copy())
    return copied


def on_snapshot(method):
    """Decorate a method that inspects images with what has been learnt.

    It works with the estimator as it is when the call begins, whatever `fit` or
    `partial_fit` do to it meanwhile in another thread.
    """
    computing = safe_after_fork(computes(method))

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return computing(take_snapshot(self), *args, **kwargs)

    return call


def describe_calibration(calibration, name="false_alarm_rate"):
    """Return a calibration and what is read off it, by attribute.

    `name` is that of the parameter in warnings; without one, there are none.
    """
    is_used = calibration.held_out is None
    return {
        "offset_": calibration.offset(name=name),
        "training_scores_": calibration.scores,
        "groups_": calibration.groups,
        "twins_": calibration.twins,
        "calibrates_": calibration.calibrates & is_used,
        "calibration_scores_": calibration.used_scores,
        "calibration_groups_": calibration.used_groups,
        "_calibration": calibration,
    }


def describe_bank(fitted, encoder):
    """Return a bank and what is read off it, by attribute."""
    names, usual = encoder.scale_names, None
    if fitted.variations is not None:
        distances = [x.distances for x in fitted.variations]
        usual = dict(zip(names, distances, strict=True))
    sizes = map(len, fitted.indexes)
    kinds, n_rows = [], dict.fromkeys(names, 0)
    if fitted.feedback is not None and fitted.feedback.defects is not None:
        defects = fitted.feedback.defects
        kinds = defects.kinds
        rows = [len(bank.rows) for bank in defects.banks]
        n_rows = dict(zip(names, rows, strict=True))
    return {
        "defect_kinds_": np.array(kinds, dtype=str),
        "defect_bank_size_": n_rows,
        "bank_size_": dict(zip(names, sizes, strict=True)),
        "usual_distances_": usual,
        "training_files_": list(fitted.files),
        "_fitted": fitted,
    }
