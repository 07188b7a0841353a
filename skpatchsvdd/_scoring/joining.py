"""One bank of several that have grown from the same one."""

import numpy as np
import torch

from skpatchsvdd._bank import Bank, PatchSample, Variation, join_banks, rows_to_keep
from skpatchsvdd._scoring.fitted import index_banks


def check_copies(own, others):
    """Raise if any of some fitted estimators is no copy of one, with more learnt."""
    for i, other in enumerate(others):
        difference = _find_difference(own, other)
        if difference is not None:
            raise ValueError(
                f"estimator {i} of others {difference}, so that their features and "
                "scores cannot be compared. Pass copies of this estimator that "
                "partial_fit has added images to."
            )


def _find_difference(own, other):
    """Say in what an estimator differs from the one it should be a copy of, or None."""
    theirs = _list_settings(other)
    for name, value in _list_settings(own).items():
        if not np.array_equal(value, theirs[name]):
            values = ""
            if not isinstance(value, np.ndarray | None):
                values = f" ({theirs[name]!r} instead of {value!r})"
            return f"was fitted with another {name} than this one{values}"
    pairs = zip(own.encoder_.parameters(), other.encoder_.parameters(), strict=True)
    if not all(torch.equal(*pair) for pair in pairs):
        return "has an encoder with other weights than this one"
    known = own._fitted.known
    if other._fitted.known[: len(known)] != known:
        return "has not grown from this one: its bank begins with other images"
    if other._fitted.units != own._fitted.units:
        return "was fitted with another position_weight than this one"
    if _list_labels(own) != _list_labels(other)[: len(known)]:
        return "was given other groups than this one"
    return None


def _list_labels(estimator):
    groups = estimator._calibration.groups
    return [] if groups is None else groups.tolist()


def _list_settings(estimator):
    """Return what features and scores depend on, by the parameter that decides it."""
    encoder, fitted = estimator.encoder_, estimator._fitted
    _, embedding_dim, patch_size = encoder.config
    setting = fitted.setting
    return {
        "encoder": " and ".join(x.name for x in encoder.members),
        "patch_size": patch_size,
        "embedding_dim": embedding_dim,
        "image_size": tuple(setting.image_size),
        "strides": tuple(setting.strides),
        "light": setting.light,
        "roi": setting.roi,
        "training": setting.center,  # the mean image is subtracted, or one grey
        "relative_weight": fitted.relative_weight,
        "comparison_weight": fitted.comparison_weight,
        "score_pixels": fitted.score_pixels,
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


def join_fitted(fitted, others, added, owners, context):
    """Let images that were `added` to copies of a bank join it, without any feedback.

    `owners` are those of former and new images, in the order of `others` and `added`.
    """
    rng, device = context.rng, context.device
    banks = [[index.bank()] for index in fitted.indexes]
    samples = fitted.variations and [[x.sample] for x in fitted.variations]
    known, sizes, files = (list(x) for x in (fitted.known, fitted.sizes, fitted.files))
    pictures = [fitted.pictures]
    for other, new in zip(others, added, strict=True):
        numbers = np.full(len(other.known), -1)
        numbers[new] = np.arange(len(known), len(known) + len(new))
        for parts, index in zip(banks, other.indexes, strict=True):
            parts.append(_renumber(index.bank(), numbers, owners))
        if samples is not None:
            names = np.full(other.owners.max() + 1, -1)
            names[other.owners[new]] = owners[numbers[new]]
            for parts, x in zip(samples, other.variations, strict=True):
                parts.append(_take_new(x.sample, parts[0], names))
        known.extend(other.known[i] for i in new)
        sizes.extend(other.sizes[i] for i in new)
        files.extend(other.files[i] for i in new)
        pictures.append(None if other.pictures is None else other.pictures[new])
    joined = []
    for parts, cells in zip(banks, context.inspect(fitted).encoder.cells, strict=True):
        n_features, n_rows = parts[0].rows.shape[1], len(known) * len(cells)
        size = rows_to_keep(context.options.bank_size, n_rows, n_features)
        joined.append(join_banks(parts, size, rng, device))
    indexes = index_banks(joined, context)
    variations = None
    if samples is not None:
        variations = []
        for (first, *rest), index in zip(samples, indexes, strict=True):
            for sample in rest:
                first = first.join(sample, rng)
            variations.append(Variation(first, index, device))
    return fitted.change(
        indexes=indexes,
        known=known,
        owners=owners,
        variations=variations,
        pictures=None if pictures[0] is None else np.concatenate(pictures),
        sizes=sizes,
        files=files,
        feedback=None,
    )


def _renumber(bank, numbers, owners):
    """Return the rows of images that have a new number, under that number."""
    images = numbers[bank.places[:, 0]]
    is_new = images >= 0
    images = images[is_new]
    places = np.column_stack([images, bank.places[is_new, 1]]).astype(np.int32)
    return Bank(bank.rows[is_new], owners[images].astype(np.int32), places)


def _take_new(sample, former, names):
    """Return the patches of a sample that are not in a former one, renamed."""
    there = {row.tobytes() for row in former.rows}
    owners = names[sample.owners]
    is_new = [row.tobytes() not in there for row in sample.rows] & (owners >= 0)
    return PatchSample(sample.rows[is_new], owners[is_new])
