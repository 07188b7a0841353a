"""Saving a fitted estimator in a model file, and loading it."""

from numbers import Integral

import numpy as np

from skpatchsvdd._learnt import describe_learnt, set_learnt
from skpatchsvdd._storage.content import check_content
from skpatchsvdd._storage.model import read_model, write_model
from skpatchsvdd._utils import check_device_name

# What `fit` learns. What else a fitted estimator has, `describe_learnt` reads off it.
LEARNT = (
    "encoder_",
    "lam_",
    "offset_",
    "roi_",
    "center_",
    "inspected_shape_",
    "patch_sizes_",
    "strides_",
    "loss_curve_",
    "n_iter_",
    "best_iter_",
    "validation_steps_",
    "validation_scores_",
    "n_features_in_",
    "suspects_",
    "_calibration",
    "_fitted",
)


def save_estimator(estimator, path):
    """Save a fitted estimator; see `PatchSVDD.save`."""
    estimator._fitted.check_file()
    parameters = estimator.get_params(deep=False)
    if not isinstance(estimator.random_state, Integral | None):
        parameters["random_state"] = None
    if estimator.roi is not None:
        parameters["roi"] = np.asarray(estimator.roi)
    learnt = {name: getattr(estimator, name) for name in LEARNT}
    write_model(path, parameters, learnt)


def load_estimator(cls, path, mmap, encoder=None):
    """Load an estimator of a class; see `skpatchsvdd.load`."""
    parameters, learnt = read_model(path, mmap, encoder)
    check_content(path, parameters, learnt)
    if others := set(LEARNT) ^ set(learnt):
        what = "holds" if others <= set(learnt) else "lacks"
        names = sorted(map(str, others))
        raise ValueError(f"{path} cannot be loaded: it {what} {names}.")
    try:
        estimator = cls(**parameters)
        estimator._validate_params()
        check_device_name(estimator.device)
        if mmap:
            for member in learnt["encoder_"].members:
                member.share_weights()
        core = [learnt.pop(x) for x in ("encoder_", "_fitted", "_calibration")]
        learnt = describe_learnt(*core, name=None, **learnt)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be loaded: {error!r}.") from error
    set_learnt(estimator, learnt)
    return estimator
