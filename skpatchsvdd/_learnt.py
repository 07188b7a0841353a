"""What an estimator has learnt, as its attributes: set at once, read as of one moment.

Threads share estimators: some score while another one fits.
"""

import functools
from types import SimpleNamespace

import numpy as np

from skpatchsvdd._utils import compute, make_lock

_LEARNING = make_lock()


def set_learnt(estimator, learnt, former=None):
    """Set the attributes of `describe_learnt` at once: no thread sees a part of them.

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
        vars(estimator).update(vars(learnt))


def describe_learnt(encoder, fitted, calibration, name="false_alarm_rate", **others):
    """Return what an estimator has learnt, as the attributes that it will have.

    `name` is that of the parameter in warnings; without one, there are none. `others`
    are attributes that `fit` alone sets.
    """
    learnt = SimpleNamespace()
    learnt.encoder_, names = encoder, encoder.scale_names
    learnt._fitted, learnt._calibration = fitted, calibration
    groups = calibration.groups
    learnt.offset_ = calibration.offset(name=name)
    learnt.training_scores_ = calibration.scores
    learnt.groups_ = groups if calibration.are_given else None
    learnt.twins_ = None if calibration.are_given else groups
    learnt.calibrates_ = calibration.calibrates & (calibration.held_out is None)
    learnt.calibration_scores_ = calibration.used_scores
    learnt.calibration_groups_ = calibration.used_groups
    learnt.training_files_ = list(fitted.files)
    learnt.bank_size_ = _by_scale(names, map(len, fitted.indexes))
    learnt.usual_distances_ = None
    if fitted.variations is not None:
        distances = [x.distances for x in fitted.variations]
        learnt.usual_distances_ = _by_scale(names, distances)
    defects = fitted.feedback and fitted.feedback.defects
    sizes = [len(x.rows) for x in defects.banks] if defects else [0] * len(names)
    learnt.defect_bank_size_ = _by_scale(names, sizes)
    learnt.defect_kinds_ = np.array(defects.kinds if defects else [], dtype=str)
    vars(learnt).update(others)
    return learnt


def _by_scale(names, values):
    return dict(zip(names, values, strict=True))


def take_snapshot(estimator):
    """Return a shallow copy, of one moment."""
    copied = object.__new__(type(estimator))
    vars(copied).update(vars(estimator).copy())
    return copied


def on_snapshot(method):
    """Decorate a method that inspects images with what has been learnt.

    It computes, see `compute`, with the estimator as it is when the call begins,
    whatever `fit` or `partial_fit` do to it meanwhile in another thread.
    """

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return compute(method, take_snapshot(self), args, kwargs)

    return call
