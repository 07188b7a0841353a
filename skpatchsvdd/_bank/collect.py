"""Collecting the bank: all normal features, or a part that covers them."""

from numbers import Integral

import numpy as np
import torch

from skpatchsvdd._bank.coreset import Coreset, FoldedCoreset
from skpatchsvdd._bank.exact import Bank, as_tensor

# Bytes of one scale's bank, unless a size is asked for: memory that every machine has.
MAX_BYTES = 2**30
# Parts of the images of which a reduced bank is made. Each image is scored without its
# part: with fewer, much of the bank would be missing then; with more, parts cover less.
_N_FOLDS = 10


def collect_banks(
    encoder,
    images,
    units,
    bank_size,
    rng,
    *,
    former=(),
    n_former=0,
    owners=None,
    folds=None,
    samplers=(),
    pictures=None,
    progress=None,
):
    """Encode all patches of a stack of images, and keep what the banks have room for.

    `units` say how positions are appended to features, and `bank_size` how many rows
    stay: a number, a fraction, or None for as many as a bound allows. `former` banks
    are of `n_former` images. Patches are those of `owners`, one for each image, or of
    the images, numbered from `n_former`; with `folds`, the number of images in each,
    owners are folds, and rows are chosen in each fold by itself. `samplers`, one for
    each scale, are shown the patches too, and what a comparison sees of images is
    appended to the list `pictures`. Returns a bank for each scale.
    """
    coresets, n_images = [], n_former + len(images)
    numbers = np.arange(n_former, n_images)
    owners = numbers if owners is None else owners
    is_gpu = encoder.device.type == "cuda"
    for start, batch in images.batches(encoder.batch_size, is_ahead=is_gpu):
        batch, taken = encoder.move(batch), slice(start, start + len(batch))
        if pictures is not None:
            pictures.append(encoder.picture(batch).cpu().numpy())
        scales = encoder.add_positions(encoder.encode(batch), units)
        pairs = zip(scales, encoder.cells, strict=True)
        scales = [take_cells(x.flatten(1, 2), cells) for x, cells in pairs]
        for i, x in enumerate(scales if start == 0 else ()):
            shape = n_images * x.shape[1], x.shape[2]
            size = rows_to_keep(bank_size, *shape, encoder.most_rows[i])
            coresets.append(_make_coreset(size, *shape, rng, encoder.device, folds))
            _add_banks(coresets[i], former[i : i + 1])
        of_batch = owners[taken], numbers[taken]
        for coreset, x, cells in zip(coresets, scales, encoder.cells, strict=True):
            coreset.add(x.flatten(0, 1), _label(*of_batch, cells))
        for sampler, x in zip(samplers, scales, strict=len(samplers) > 0):
            sampler.add(x, *of_batch)
        if progress is not None:
            progress(taken.stop)
    return [_make_bank(*coreset.result()) for coreset in coresets]


def join_banks(banks, size, rng, device, folds=None):
    """Join banks of the same scale to one of at most `size` rows."""
    n_rows, n_features = sum(len(x.rows) for x in banks), banks[0].rows.shape[1]
    coreset = _make_coreset(size, n_rows, n_features, rng, device, folds)
    _add_banks(coreset, banks)
    return _make_bank(*coreset.result())


def _make_coreset(size, n_rows, n_features, rng, device, folds):
    if folds is None:
        return Coreset(size, n_rows, n_features, rng, device)
    return FoldedCoreset(size, folds, n_rows, n_features, rng, device)


def _add_banks(coreset, banks):
    for bank in banks:
        labels = np.column_stack([bank.owners, bank.places])
        coreset.add(as_tensor(bank.rows), labels)


def take_cells(features, cells):
    """Return the features of patches with these numbers, (n, n_patches, D)."""
    if len(cells) < features.shape[1]:
        features = features[:, torch.from_numpy(cells).to(features.device)]
    return features


def _label(owners, numbers, cells):
    """Return owner, image and patch of all patches of images, (n_rows, 3)."""
    pairs = np.column_stack([owners, numbers]).repeat(len(cells), axis=0)
    return np.column_stack([pairs, np.tile(cells, len(numbers))])


def count_folds(bank_size, n_owners, n_rows, n_features, most_rows):
    """Return of how many folds banks are made: 0 if they have room for all rows.

    `n_rows`, `n_features` and `most_rows` are those of each scale.
    """
    scales = zip(n_rows, n_features, most_rows, strict=True)
    sizes = [rows_to_keep(bank_size, *scale) for scale in scales]
    if sizes == list(n_rows):
        return 0
    return max(min(_N_FOLDS, n_owners, *sizes), 2)


def _make_bank(rows, labels):
    return Bank(rows, np.ascontiguousarray(labels[:, 0]), labels[:, 1:].copy())


def rows_to_keep(bank_size, n_rows, n_features, most=None):
    """Return how many of `n_rows` rows a `bank_size` parameter keeps.

    `most` is the bound of a scale where that is None.
    """
    if bank_size is None:
        return min(n_rows, most or MAX_BYTES // (4 * n_features))
    if isinstance(bank_size, Integral):
        return min(n_rows, int(bank_size))
    return max(round(bank_size * n_rows), 1)
