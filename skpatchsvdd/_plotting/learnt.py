"""What a fitted estimator has learnt, for a picture of it."""

from sklearn.utils.validation import check_is_fitted

from skpatchsvdd._utils import detector_of


def read_learnt(estimator, name):
    """Return a learnt attribute of an estimator, a pipeline or a search, or raise."""
    detector = detector_of(estimator)
    check_is_fitted(detector)
    if not hasattr(detector, name):
        raise TypeError(
            f"estimator must have {name}, as PatchSVDD has; {type(detector).__name__} "
            "has not."
        )
    return getattr(detector, name)
