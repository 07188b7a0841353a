"""What an estimator has learnt, as its attributes: set at once, read as of one moment.

Threads share estimators: some score while another one fits.
"""

import functools
from collections import Counter
from html import escape

import numpy as np

from skpatchsvdd._utils import compute, make_lock

_LEARNING = make_lock()


def set_learnt(estimator, learnt, former=None):
    """Set the attributes of `describe_learnt` at once: no thread sees a part of them.

    `former` is the snapshot that this goes on from, if any: what it has learnt must
    still be there.
    """
    with _LEARNING:
        before = vars(estimator).copy()  # kept until all is set: dropping takes time
        names = () if former is None else ("_fitted", "_calibration")
        if any(before[name] is not vars(former)[name] for name in names):
            raise RuntimeError(
                "another thread has changed this estimator while this call learnt or "
                "calibrated. Nothing of this call was kept: call it again, one call "
                "after the other."
            )
        vars(estimator).update(learnt)


def describe_learnt(encoder, fitted, calibration, name="false_alarm_rate", **others):
    """Return what an estimator has learnt, as the attributes that it will have, a dict.

    `name` is that of the parameter in warnings, None for no warnings. `others` are
    attributes that `fit` alone sets.
    """
    names, variations = encoder.scale_names, fitted.variations
    by_scale = functools.partial(zip, names, strict=True)
    defects = fitted.feedback and fitted.feedback.defects
    defect_rows = [x.rows for x in defects.banks] if defects else [()] * len(names)
    return {
        "encoder_": encoder,
        "_fitted": fitted,
        "_calibration": calibration,
        "offset_": calibration.offset(name=name),
        "fixed_threshold_": calibration.fixed,
        "training_scores_": calibration.scores,
        "groups_": calibration.groups,
        "twins_": calibration.twins,
        "calibrates_": calibration.calibrates & (calibration.held_out is None),
        "calibration_scores_": calibration.used_scores,
        "calibration_groups_": calibration.used_groups,
        "training_files_": list(fitted.files),
        "bank_size_": dict(by_scale(map(len, fitted.indexes))),
        "usual_distances_": variations
        and dict(by_scale([x.distances for x in variations])),
        "defect_bank_size_": dict(by_scale(map(len, defect_rows))),
        "defect_kinds_": np.array(defects.kinds if defects else [], dtype=str),
        **others,
    }


def show_learnt(estimator, html):
    """Return scikit-learn's HTML of an estimator, and below it what is fitted."""
    if "_fitted" not in vars(estimator):
        return html
    facts = _list_facts(take_snapshot(estimator))
    rows = "".join(
        f"<tr><th style='text-align: left'>{escape(name)}</th>"
        f"<td style='text-align: left'>{escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"{html}<table class='skpatchsvdd-fitted'><tbody>{rows}</tbody></table>"


def _list_facts(estimator):
    """Return what is fitted, in words, by what it is."""
    height, width, n_channels = estimator.inspected_shape_
    rate = estimator._calibration.alarm_rate(estimator.offset_)
    facts = {
        "fitted to": f"{len(estimator.training_scores_):,} images",
        "inspected at": f"{height} x {width} pixels, channels: {n_channels}",
        "patches": ", ".join(map(str, estimator.scales_)),
        "abnormal": f"below a score of {estimator.offset_:.4g}",
        "false alarms": f"about 1 in {round(1 / rate):,} new normal images",
    }
    if kinds := sorted(Counter(estimator.defect_kinds_.tolist()).items()):
        facts["known defects"] = ", ".join(f"{n:,} of {kind}" for kind, n in kinds)
    return facts


def take_snapshot(estimator):
    """Return a shallow copy, of one moment."""
    copied = object.__new__(type(estimator))
    vars(copied).update(vars(estimator).copy())
    return copied


def on_snapshot(method):
    """Decorate a method that computes with the estimator as the call finds it.

    Whatever `fit` or `partial_fit` do to it meanwhile in another thread.
    """

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return compute(method, take_snapshot(self), args, kwargs)

    return call
