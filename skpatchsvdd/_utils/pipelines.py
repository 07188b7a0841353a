"""What a Pipeline or a search does not pass through."""

from sklearn.pipeline import Pipeline


def detector_of(estimator):
    """Return the estimator in which a pipeline or a search ends, or itself."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    if isinstance(estimator, Pipeline):
        return detector_of(estimator.steps[-1][1])
    return estimator


def offset_of(estimator):
    """Return the threshold of an estimator, a pipeline or a search, or None."""
    return getattr(detector_of(estimator), "offset_", None)


def maps_of(estimator, X, **options):
    """Return the anomaly maps of images by an estimator, a pipeline or a search.

    The options, such as `scale`, are those of the estimator's `anomaly_map`.
    """
    estimator, X = _pass_steps(estimator, X)
    if not hasattr(estimator, "anomaly_map"):
        raise AttributeError(
            f"{type(estimator).__name__} has no anomaly_map, so there is nothing to "
            "know about pixels. Pass a detector that has, such as PatchSVDD."
        )
    return estimator.anomaly_map(X, **options)


def inspect_by(estimator, X):
    """Return scores and maps of images, in one pass if the estimator has `inspect`.

    The maps are None where the estimator knows nothing about pixels.
    """
    last, passed = _pass_steps(estimator, X)
    if hasattr(last, "inspect"):
        seen = last.inspect(passed)
        return seen.scores, seen.maps
    maps = last.anomaly_map(passed) if hasattr(last, "anomaly_map") else None
    return last.score_samples(passed), maps


def masks_of(estimator, X):
    """Return which pixels are abnormal, or None where the estimator does not know."""
    estimator, X = _pass_steps(estimator, X)
    return estimator.predict_mask(X) if hasattr(estimator, "predict_mask") else None


def _pass_steps(estimator, X):
    """Return the last step of a pipeline or a search, and what reaches it."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    if not isinstance(estimator, Pipeline):
        return estimator, X
    for _, step in estimator.steps[:-1]:
        if step is not None and step != "passthrough":
            X = step.transform(X)
    return _pass_steps(estimator.steps[-1][1], X)
