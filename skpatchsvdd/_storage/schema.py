"""What is saved: the attributes of an estimator, and the objects that they hold."""

from skpatchsvdd._bank import ExactIndex, PatchSample, Variation
from skpatchsvdd._calibration import Calibration
from skpatchsvdd._encoding import DenseSetting
from skpatchsvdd._feedback import DefectBank, Feedback, KnownDefects
from skpatchsvdd._scoring import FittedBank

# What `fit` learns. What else a fitted estimator has is read off the last two.
LEARNT = (
    "encoder_",
    "lam_",
    "lam_results_",
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
    "_calibration",
    "_fitted",
)
# The classes of the package of which files hold objects, by name, besides encoders and
# the approximate index, which is saved as the exact one and built anew. What is saved
# of an object stands in its class: the fields of a named tuple, or what
# `Saved.saved_names` returns, of which pickles are made as well.
OBJECTS = {
    cls.__name__: cls
    for cls in (
        *(FittedBank, ExactIndex, Variation, DenseSetting, PatchSample),
        *(Calibration, Feedback, KnownDefects, DefectBank),
    )
}


def take_apart(value):
    """Return what is saved of an object of one of these classes, by name."""
    return value._asdict() if isinstance(value, tuple) else value.__getstate__()


def put_together(name, fields):
    """Return the object of a class that `take_apart` has given these fields of."""
    cls = OBJECTS[name]
    if issubclass(cls, tuple):
        if set(fields) != set(cls._fields):
            raise ValueError(f"section {name!r} is invalid")
        return cls(**fields)
    made = cls.__new__(cls)
    made.__setstate__(fields)
    return made
