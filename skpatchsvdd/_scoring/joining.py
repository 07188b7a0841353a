"""Copies of an estimator, each of which has learnt more images."""

import numpy as np


def check_copies(own, others):
    """Raise if any of some fitted estimators is no copy of one, with more learnt."""
    n_known = len(own._fitted.known)
    expected = _list_settings(own, n_known)
    for i, other in enumerate(others):
        for name, value in _list_settings(other, n_known).items():
            if not np.array_equal(value, expected[name]):
                raise ValueError(
                    f"estimator {i} of others has another {name} than this one, so "
                    "that their features or scores cannot be compared. Pass copies of "
                    "this estimator that partial_fit has added normal images to."
                )


def _list_settings(estimator, n_known):
    """Return what features and scores depend on, by the parameter that decides it.

    And what copies share of what they know: the first `n_known` images.
    """
    encoder, fitted = estimator.encoder_, estimator._fitted
    _, embedding_dim, patch_size = encoder.config
    setting, groups = fitted.setting, estimator._calibration.groups
    weights = [x.detach().numpy().ravel() for x in encoder.parameters()]
    feedback = fitted.feedback
    return {
        "encoder": [x.name for x in encoder.members],
        "patch_size": patch_size,
        "embedding_dim": embedding_dim,
        "image_size": setting.image_size,
        "strides": setting.strides,
        "light": setting.light,
        "roi": setting.roi,
        "training": setting.center,  # the mean image is subtracted, or one grey
        "relative_weight": fitted.relative_weight,
        "comparison_weight": fitted.comparison_weight,
        "score_pixels": fitted.score_pixels,
        "weight in its encoder": np.concatenate([[], *weights]),
        "position_weight": fitted.units,
        "image at the beginning of its bank": fitted.known[:n_known],
        "groups": None if groups is None else groups[:n_known].tolist(),
        "known defect": feedback.kinds if feedback else {},
        "correction": sorted(feedback.corrected) if feedback else [],
    }


def find_added(fitted, others):
    """Return, for each other bank, the indices of the images that were added to it.

    An image that several have is that of the first.
    """
    n_former, seen, added = len(fitted.known), set(fitted.known), []
    for other in others:
        new = []
        for k, digest in enumerate(other.known[n_former:], n_former):
            if digest not in seen:
                seen.add(digest)
                new.append(k)
        added.append(np.array(new, dtype=int))
    return added
