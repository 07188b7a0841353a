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
    estimator = getattr(estimator, "best_estimator_", estimator)
    if isinstance(estimator, Pipeline):
        for _, step in estimator.steps[:-1]:
            if step is not None and step != "passthrough":
                X = step.transform(X)
        return maps_of(estimator.steps[-1][1], X, **options)
    if not hasattr(estimator, "anomaly_map"):
        raise AttributeError(
            f"{type(estimator).__name__} has no anomaly_map, so there is nothing to "
            "know about pixels. Pass a detector that has, such as PatchSVDD."
        )
    return estimator.anomaly_map(X, **options)
