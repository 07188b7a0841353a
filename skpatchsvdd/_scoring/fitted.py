"""The memory bank of a fitted estimator: building, extending, scoring by it."""

import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from skpatchsvdd._bank import (
    Sampler,
    Variation,
    collect_banks,
    count_folds,
    make_index,
    take_cells,
)
from skpatchsvdd._encoding import DenseSetting, find_units
from skpatchsvdd._scoring.inspect import DeviceBank, encode_each, score_features
from skpatchsvdd._utils import Saved, draw_seed

# Bytes of features of images that calibrate, and are not in the bank, that are kept.
_KEPT_BYTES = 2**29


class _OnDevice:
    """The last encoder and bank on a device, each with what it was made for."""

    encoder = bank = None


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedBank(Saved):
    """The indexed bank of a fitted estimator, and all that inspection needs besides.

    What lives on a device, the last `DeviceBank` that was asked for and its encoder,
    is kept in `_on_device`; indexes and variations keep their own. Deep copies and
    pickles hold nothing of a device. Threads may share one object: at worst two of them
    make the same bank.
    """

    setting: DenseSetting  # how images are encoded, on no device
    indexes: list  # one for each scale, as are units and variations
    units: list  # how positions are appended to features
    known: list = ()  # digests of the images in the bank, bytes
    # The owner, image or group, of each known image: rows of the same owner are left
    # out when it is scored. In a reduced bank it is one of so many folds.
    owners: np.ndarray | None = None
    n_folds: int = 0
    n_averaged: int = 0  # the centre is the mean of so many of the first known images
    seen: set = frozenset()  # digests of the images that the encoder was trained on
    variations: list | None = None  # the distances that are usual
    relative_weight: float = 0.0
    comparison_weight: float = 0.0
    # What the comparison sees of each known image, uint8, (n_known, 1 or 3, rows, cols)
    pictures: np.ndarray | None = None
    score_pixels: int = 1
    sizes: list = ()  # the size that each known image came in, (height, width)
    files: list = ()  # and its path or None
    feedback: Any = None  # what people have said, which changes how distances count
    _on_device: _OnDevice = field(default_factory=_OnDevice, init=False, repr=False)

    def on_device(self, encoder, device):
        """Return the `DeviceBank`, the last one if nothing has changed.

        The weights of the encoder may have been changed since.
        """
        self.check_file()
        versions = [p._version for p in encoder.parameters()]  # count changes
        made_for, kept = (encoder, versions, device), self._on_device
        last = kept.bank
        if last is None or last[0] != made_for:
            dense = kept.encoder
            if dense is None or dense[0] != made_for:
                setting = self.setting._replace(device=device)
                kept.encoder = dense = made_for, setting.make(encoder)
            kept.bank = last = made_for, DeviceBank(dense[1], self)
        return last[1]

    def change(self, **changes):
        """Return one with other values of some parameters, which shares the encoder."""
        changed = replace(self, **changes)
        changed._on_device.encoder = self._on_device.encoder
        return changed

    def check_file(self):
        """Raise if the bank is mapped from a file that is no longer what it was."""
        for index in self.indexes:
            index.check_file()

    @classmethod
    def saved_names(cls):
        """Return the names of what is saved: all that it is made of."""
        return tuple(x.name for x in fields(cls) if x.init)

    def _unsaved(self):
        return {"_on_device": _OnDevice()}


def build_bank(normal, context):
    """Encode and index the patches of `NormalImages`; return a `FittedBank`.

    Those that the encoder was trained on decide how much positions count.
    """
    images, options, rng = normal.stack, context.options, context.rng
    dense = context.setting.make(context.encoder)
    units = find_units(
        dense, normal.shown_stack(), options.position_weight, rng, context.report
    )
    for size, unit in zip(dense.patch_sizes, units, strict=True):
        counts = "count" if unit > 0 else "do not count"
        context.report.log(f"positions of patches of {size} {counts}")
    samplers = None
    pictures = [] if options.comparison_weight > 0 else None
    if options.relative_weight > 0 or pictures is not None:
        sampler_rng = _fork(rng)
        samplers = [Sampler(len(images), sampler_rng) for _ in units]
    n_features = [x.shape[-1] for x in dense.encode(dense.move(images.read([0])))]
    n_features = [n + 2 * (unit > 0) for n, unit in zip(n_features, units, strict=True)]
    n_folds = _count_folds(dense, normal.owners, n_features, options.bank_size)
    owners, folds = find_folds(normal.owners, n_folds)
    with context.report.progress("encoding images", len(images)) as progress:
        banks = collect_banks(
            dense,
            images,
            units,
            options.bank_size,
            rng,
            progress=progress,
            owners=owners,
            samplers=samplers,
            pictures=pictures,
            folds=folds,
        )
    indexes = index_banks(banks, context)
    samples = samplers and [sampler.result() for sampler in samplers]
    return FittedBank(
        setting=context.setting._replace(device=None),
        indexes=indexes,
        units=units,
        known=normal.known,
        owners=owners,
        n_folds=n_folds,
        # With groups, the mean is that of the images trained on: no other image has a
        # part in it.
        n_averaged=len(normal) if normal.all_are_shown else 0,
        variations=measure_variations(samples, indexes, context),
        relative_weight=options.relative_weight,
        comparison_weight=options.comparison_weight,
        pictures=None if pictures is None else np.concatenate(pictures),
        score_pixels=options.score_pixels,
        sizes=images.sizes,
        files=images.files,
    )


def extend_bank(fitted, new, context):
    """Let the patches of `NormalImages` join a bank; return another `FittedBank`.

    The encoder is not trained on any of them.
    """
    images, rng = new.stack, context.rng
    pictures = None if fitted.pictures is None else [fitted.pictures]
    fitted = fold_bank(fitted, new.owners, context)
    everyone = np.concatenate([fitted.owners, new.owners])
    owners, folds = find_folds(everyone, fitted.n_folds)
    former, samplers, samples = fitted.variations, None, None
    if former is not None:
        sampler_rng = _fork(rng)
        n_each = [x.sample.rows.shape[1] for x in former]
        samplers = [Sampler(len(images), sampler_rng, n) for n in n_each]
    with context.report.progress("adding images", len(images)) as progress:
        banks = collect_banks(
            context.load(fitted).encoder,
            images,
            fitted.units,
            context.options.bank_size,
            rng,
            former=[index.bank() for index in fitted.indexes],
            n_former=len(fitted.known),
            progress=progress,
            owners=owners[len(fitted.known) :],
            samplers=samplers,
            pictures=pictures,
            folds=folds,
        )
    indexes = index_banks(banks, context)
    if former is not None:
        pairs = zip(former, samplers, strict=True)
        samples = [x.sample.join(sampler.result(), sampler_rng) for x, sampler in pairs]
    return fitted.change(
        indexes=indexes,
        known=[*fitted.known, *new.known],
        owners=owners,
        variations=measure_variations(samples, indexes, context),
        pictures=None if pictures is None else np.concatenate(pictures),
        sizes=[*fitted.sizes, *images.sizes],
        files=[*fitted.files, *images.files],
    )


def fold_bank(fitted, new_owners, context):
    """Return a bank of folds if more images, of some owners, make it a reduced one."""
    if fitted.n_folds:
        return fitted
    dense = context.load(fitted).encoder
    everyone = np.append(fitted.owners, new_owners)
    n_features = [index.view_bank().rows.shape[1] for index in fitted.indexes]
    n_folds = _count_folds(dense, everyone, n_features, context.options.bank_size)
    if not n_folds:
        return fitted
    banks = [index.bank() for index in fitted.indexes]
    banks = [x._replace(owners=x.owners % n_folds) for x in banks]
    variations = copy.deepcopy(fitted.variations)
    for x in variations or []:
        x.sample = x.sample._replace(owners=x.sample.owners % n_folds)
    return fitted.change(
        indexes=index_banks(banks, context),
        owners=fitted.owners % n_folds,
        n_folds=n_folds,
        variations=variations,
    )


def _count_folds(dense, owners, n_features, bank_size):
    n_rows = [len(owners) * len(cells) for cells in dense.cells]
    return count_folds(bank_size, len(np.unique(owners)), n_rows, n_features)


def find_folds(owners, n_folds):
    """Return who is left out for each image, and the sizes of folds or None."""
    if not n_folds:
        return owners, None
    return owners % n_folds, np.bincount(owners % n_folds, minlength=n_folds)


def _fork(rng):
    """Return another RandomState, from which draws leave this one as it is."""
    return np.random.RandomState(draw_seed(copy.deepcopy(rng)))


def measure_variations(samples, indexes, context):
    """Return the usual distances of samples of each scale; None without samples."""
    if samples is None:
        return None
    context.report.log("measuring how much normal patches vary")
    pairs = zip(samples, indexes, strict=True)
    return [Variation(sample, index, context.device) for sample, index in pairs]


def index_banks(banks, context):
    """Index the bank of every scale."""
    options, log, indexes = context.options, context.report.log, []
    for bank in banks:
        seed = draw_seed(context.rng)
        log(f"indexing {len(bank.rows):,} patches")
        indexes.append(
            make_index(
                bank, options.neighbors, context.device, options.n_jobs, seed, log
            )
        )
    return indexes


class EncodedImages(NamedTuple):
    """Images that no bank holds, as they are compared, to be scored again."""

    known: list  # digests of all of them, bytes
    # By scale, the patches of the first of them, float32, (n, n_patches, n_features).
    rows: list
    pictures: np.ndarray | None  # and what the comparison sees of these

    def take(self, indices):
        """Return some of them."""
        kept = [i for i in indices if i < len(self.rows[0])]
        pictures = None if self.pictures is None else self.pictures[kept]
        known = [self.known[i] for i in indices]
        return EncodedImages(known, [x[kept] for x in self.rows], pictures)


def encode_images(images, known, bank, progress):
    """Score new images, without feedback and raised by it, (2, n), and encode them.

    As many as there is room for: of the first ones alone the features are kept.
    """
    cells = bank.encoder.cells
    scores, rows, pictures, n_bytes = [], [[] for _ in cells], [], 0
    for i, x in enumerate(encode_each(images, bank)):
        scores.append(score_features(x.features, [-1], x.pictures, bank))
        pairs = zip(x.features, cells, strict=True)
        own = [take_cells(f.flatten(1, 2), chosen) for f, chosen in pairs]
        n_bytes += 4 * sum(f.numel() for f in own)
        if n_bytes <= _KEPT_BYTES or i == 0:
            for part, f in zip(rows, own, strict=True):
                part.append(f.cpu().numpy())
            if x.pictures is not None:
                pictures.append(x.pictures.cpu().numpy())
        progress(i + 1)
    rows = [np.concatenate(part) for part in rows]
    pictures = np.concatenate(pictures) if pictures else None
    return np.concatenate(scores, axis=1), EncodedImages(known, rows, pictures)


def score_encoded(encoded, fitted, bank):
    """Score `EncodedImages` as `encode_images` does, (2, n); NaN if they are not kept.

    Of those that have joined the bank since, their owner is left out.
    """
    owners = dict(zip(fitted.known, fitted.owners.tolist(), strict=True))
    scores = np.full((2, len(encoded.known)), np.nan)
    for i in range(len(encoded.rows[0])):
        rows = [x[i : i + 1] for x in encoded.rows]
        picture = None if encoded.pictures is None else encoded.pictures[i : i + 1]
        owner = owners.get(encoded.known[i], -1)
        scores[:, i : i + 1] = _score(rows, [owner], picture, bank)
    return scores


def score_rows(fitted, bank, report):
    """Score the images all of whose patches a bank holds, each without its own ones.

    By the `DeviceBank` of this bank, or of a part of it. Returns, (2, n_images), how
    abnormal each image is, without feedback and by what it raises; NaN for images some
    of whose patches are not there.
    """
    dense, n_images = bank.encoder, len(fitted.known)
    banks = [index.view_bank() for index in fitted.indexes]
    orders = [np.lexsort((x.places[:, 1], x.places[:, 0])) for x in banks]
    counts = [np.bincount(x.places[:, 0], minlength=n_images) for x in banks]
    starts = [np.append(0, np.cumsum(count)) for count in counts]
    pairs = zip(counts, dense.cells, strict=True)
    are_whole = [count == len(cells) for count, cells in pairs]
    whole = np.flatnonzero(np.all(are_whole, axis=0))
    scores = np.full((2, n_images), np.nan)
    with report.side_progress("scoring images learnt from", len(whole)) as progress:
        for start in range(0, len(whole), dense.batch_size):
            some = whole[start : start + dense.batch_size]
            rows = []
            for index, order, at in zip(banks, orders, starts, strict=True):
                own = [index.rows[order[at[i] : at[i + 1]]] for i in some]
                rows.append(np.stack(own))
            pictures = None if fitted.pictures is None else fitted.pictures[some]
            owners = fitted.owners[some].tolist()
            scores[:, some] = _score(rows, owners, pictures, bank)
            progress(start + len(some))
    return scores


def _score(rows, owners, pictures, bank):
    """Score images by their patches, (n, n_patches, n_features) of each scale."""
    dense = bank.encoder
    features = [_lay_out(x, dense, k) for k, x in enumerate(rows)]
    pictures = None if pictures is None else dense.move(pictures)
    return score_features(features, owners, pictures, bank)


def _lay_out(rows, dense, scale):
    """Return the features of images' patches on their grid, (n, rows, cols, D)."""
    height, width = dense.grids[scale]
    shape = len(rows), height * width, rows.shape[2]
    features = np.zeros(shape, dtype=np.float32)
    features[:, dense.cells[scale]] = rows
    features = torch.from_numpy(features).to(dense.device)
    return features.unflatten(1, (height, width))
