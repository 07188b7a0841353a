"""One bank of several that have grown from the same one."""

import numpy as np

from skpatchsvdd._bank import Bank, PatchSample, Variation, join_banks, rows_to_keep
from skpatchsvdd._inspection.fitted import index_banks


def find_added(fitted, others):
    """Return, for each other bank, the indices of the images that were added to it.

    An image that several have is that of the first. Raises where a bank has not grown
    from this one.
    """
    n_former, seen, added = len(fitted.known), set(fitted.known), []
    for i, other in enumerate(others):
        if other.known[:n_former] != fitted.known or other.units != fitted.units:
            raise ValueError(
                f"estimator {i} of others has not grown from this one: its bank begins "
                "with other images. Pass copies of this estimator that partial_fit has "
                "added images to."
            )
        new = []
        for k, digest in enumerate(other.known[n_former:], n_former):
            if digest not in seen:
                seen.add(digest)
                new.append(k)
        added.append(np.array(new, dtype=int))
    return added


def join_fitted(fitted, others, added, owners, dense, options, rng, report):
    """Let what was added to copies of a bank join it; return another `FittedBank`.

    Parameters
    ----------
    fitted : FittedBank
        What all others have grown from.
    others : list of FittedBank
        The copies.
    added : list of ndarray of int
        What `find_added` has found.
    owners : ndarray of int
        Those of former and new images, in the order of `others` and `added`.
    dense : DenseEncoder
        Where to search, and which patches count.
    options, rng, report
        As for `build_bank`.
    """
    banks = [[index.bank()] for index in fitted.indexes]
    samples = fitted.variations and [[x.sample] for x in fitted.variations]
    known, sizes, files = (list(x) for x in (fitted.known, fitted.sizes, fitted.files))
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
        for all_of_it, its in ((known, other.known), (sizes, other.sizes)):
            all_of_it.extend(its[i] for i in new)
        files.extend(other.files[i] for i in new)
    joined = []
    for parts, cells in zip(banks, dense.cells, strict=True):
        n_features = parts[0].rows.shape[1]
        size = rows_to_keep(options.bank_size, len(known) * len(cells), n_features)
        joined.append(join_banks(parts, size, rng, dense.device))
    indexes = index_banks(joined, dense.device, options, rng, report)
    variations = None
    if samples is not None:
        variations = []
        for (first, *rest), index in zip(samples, indexes, strict=True):
            for sample in rest:
                first = first.join(sample, rng)
            variations.append(Variation(first, index, dense.device))
    result = fitted.replace_bank(indexes, known, owners, variations)
    result.sizes, result.files = sizes, files
    return result


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
