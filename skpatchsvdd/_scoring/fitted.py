"""The bank of a fitted estimator: built, extended, joined, and its images scored."""

import copy
import functools
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from skpatchsvdd._bank import (
    Bank,
    PatchSample,
    Sampler,
    Variation,
    collect_banks,
    count_folds,
    join_banks,
    make_index,
    rows_to_keep,
    take_cells,
)
from skpatchsvdd._encoding import DenseSetting, find_units, join_encoders
from skpatchsvdd._images import ImageStack
from skpatchsvdd._parameters import Options
from skpatchsvdd._scoring.inspect import FittedBank, encode_each, score_features
from skpatchsvdd._utils import Report, draw_seed, say_time_left

# How long fit takes an image, as a multiple of encoding it, at full resolution: it is
# encoded twice, its patches are chosen from, and searched (bench_large.py).
_TIMES = 4
# Bytes of features of images that calibrate, and are not in the bank, that are kept.
_KEPT_BYTES = 2**29


@dataclass(frozen=True)
class FitContext:
    """How a call of `fit`, `partial_fit` or `join` works, the same in all its steps."""

    setting: DenseSetting  # how images are encoded, and on which device
    options: Options  # how to train, and how the bank is built and searched
    rng: np.random.RandomState  # the source of all randomness
    report: Report  # says how far it has come
    encoder: nn.Module | None = None  # as trained, once it is

    @property
    def device(self):
        """Where to compute."""
        return self.setting.device

    def load(self, fitted):
        """Return a `FittedBank` on the device, a `DeviceBank`."""
        return fitted.on_device(self.encoder, self.device)


@dataclass(frozen=True)
class NormalImages:
    """The images that a bank is built of, and what is known of them."""

    stack: ImageStack
    known: list  # their digests, bytes
    owners: np.ndarray  # the number of the owner, image or group, of each
    shown: np.ndarray  # indices of those that the encoder may be trained on
    groups: np.ndarray | None = None  # the user's label of each one's group
    calibrates: np.ndarray | None = None  # bool, whether thresholds come from each

    def __len__(self):
        return len(self.stack)

    def take(self, is_taken):
        """Return some of them, as an array of bool tells."""
        if is_taken.all():
            return self
        taken = np.flatnonzero(is_taken)
        _, owners = np.unique(self.owners[taken], return_inverse=True)
        return NormalImages(
            self.stack.take(taken),
            [self.known[i] for i in taken],
            owners,
            np.flatnonzero(np.isin(taken, self.shown)),
            None if self.groups is None else self.groups[taken],
            None if self.calibrates is None else self.calibrates[taken],
        )

    @property
    def all_are_shown(self):
        """Whether none are set aside from training."""
        return len(self.shown) == len(self.stack)

    def shown_stack(self):
        """Return the images that the encoder may be trained on."""
        return self.stack if self.all_are_shown else self.stack.take(self.shown)


def foretell(images, pretrained, context):
    """Say, of images at full resolution, how long all take, by the time of one."""
    if images.reduction == 1:
        return
    dense = context.setting.make(join_encoders(pretrained))
    start = time.perf_counter()
    dense.encode(images.read([0]))
    seconds = time.perf_counter() - start
    n_patches = sum(map(len, dense.cells))
    height, width = (context.setting.reduction * x for x in context.setting.image_size)
    context.report.log(
        f"{height} x {width} pixels, {n_patches:,} patches: encoding an image takes "
        f"{seconds:.1f} s" + say_time_left(_TIMES * seconds, 1, 1 + len(images))
    )


def build_bank(normal, context):
    """Encode and index the patches of `NormalImages`; return a `FittedBank`.

    Those that the encoder was trained on decide how much positions count.
    """
    options, report = context.options, context.report
    dense = context.setting.make(context.encoder)
    weight, shown = options.position_weight, normal.shown_stack()
    units = find_units(dense, shown, weight, context.rng, report)
    for size, unit in zip(dense.patch_sizes, units, strict=True):
        counts = "count" if unit > 0 else "do not count"
        report.log(f"positions of patches of {size} {counts}")
    features = dense.encode(normal.stack.read([0]))
    pairs = zip(features, units, strict=True)
    n_features = [x.shape[-1] + 2 * (unit > 0) for x, unit in pairs]
    empty = FittedBank(
        setting=context.setting._replace(device=None),
        indexes=[],
        units=units,
        owners=np.arange(0),
        n_folds=_count_folds(dense, normal.owners, n_features, options.bank_size),
        # With groups, the mean is that of the images trained on: no other image has a
        # part in it.
        n_averaged=len(normal) if normal.all_are_shown else 0,
        relative_weight=options.relative_weight,
        comparison_weight=options.comparison_weight,
        score_pixels=options.score_pixels,
    )
    return _add_images(empty, normal, dense, context, "encoding images")


def extend_bank(fitted, new, context):
    """Let the patches of `NormalImages` join a bank; return another `FittedBank`.

    The encoder is not trained on any of them.
    """
    fitted = fold_bank(fitted, new.owners, context)
    dense = context.load(fitted).encoder
    return _add_images(fitted, new, dense, context, "adding images")


def _add_images(fitted, new, dense, context, label):
    images, rng, n_former = new.stack, context.rng, len(fitted.known)
    owners = np.concatenate([fitted.owners, new.owners])
    owners, folds = find_folds(owners, fitted.n_folds)
    pictures = [] if fitted.pictures is None else [fitted.pictures]
    sampler_rng, samplers = None, []
    if fitted.relative_weight > 0 or fitted.comparison_weight > 0:
        sampler_rng = np.random.RandomState(draw_seed(rng))
        n_each = [x.sample.rows.shape[1] for x in fitted.variations or []]
        n_each = n_each or [None] * len(fitted.units)
        samplers = [Sampler(len(images), sampler_rng, n) for n in n_each]
    with context.report.progress(label, len(images)) as progress:
        banks = collect_banks(
            dense,
            images,
            fitted.units,
            context.options.bank_size,
            rng,
            former=[index.bank() for index in fitted.indexes],
            n_former=n_former,
            owners=owners[n_former:],
            folds=folds,
            samplers=samplers,
            pictures=pictures if fitted.comparison_weight > 0 else None,
            progress=progress,
        )
    indexes = index_banks(banks, context)
    samples = [x.result() for x in samplers]
    if fitted.variations is not None:
        pairs = zip(fitted.variations, samples, strict=True)
        samples = [x.sample.join(sample, sampler_rng) for x, sample in pairs]
    return fitted.change(
        indexes=indexes,
        known=[*fitted.known, *new.known],
        owners=owners,
        variations=measure_variations(samples, indexes, context),
        pictures=np.concatenate(pictures) if pictures else None,
        sizes=[*fitted.sizes, *images.sizes],
        files=[*fitted.files, *images.files],
    )


def join_fitted(fitted, others, added, calibration, context):
    """Let images that were `added` to copies of a bank join it, without any feedback.

    The `Calibration` is that of former and new images, in the order of `others` and
    `added`.
    """
    owners = calibration.owners
    fitted = fold_bank(fitted, owners[len(fitted.known) :], context)
    joining = list(zip(others, added, strict=True))
    if fitted.n_folds and calibration.groups is None:
        # As their rows were chosen.
        owners = [x.owners[new] for x, new in joining]
        owners = np.concatenate([fitted.owners, *owners])
    owners, folds = find_folds(owners, fitted.n_folds)
    banks, samples, n_known = _collect_parts(fitted, joining, owners)
    dense, joined = context.load(fitted).encoder, []
    for parts, cells, most in zip(banks, dense.cells, dense.most_rows, strict=True):
        shape = n_known * len(cells), parts[0].rows.shape[1]
        size = rows_to_keep(context.options.bank_size, *shape, most)
        joined.append(join_banks(parts, size, context.rng, context.device, folds))
    indexes = index_banks(joined, context)
    samples = [
        functools.reduce(lambda a, b: a.join(b, context.rng), parts)
        for parts in samples
    ]
    each = [(other, i) for other, new in joining for i in new]
    pictures = [other.pictures[[i]] for other, i in each if fitted.pictures is not None]
    return fitted.change(
        indexes=indexes,
        known=[*fitted.known, *(other.known[i] for other, i in each)],
        owners=owners,
        variations=measure_variations(samples, indexes, context),
        pictures=np.concatenate([fitted.pictures, *pictures]) if pictures else None,
        sizes=[*fitted.sizes, *(other.sizes[i] for other, i in each)],
        files=[*fitted.files, *(other.files[i] for other, i in each)],
    )


def _collect_parts(fitted, joining, owners):
    """Return, by scale, the parts of a bank, and of its sample of patches.

    And how many images they are of: those of the bank, then those that are joining.
    """
    banks = [[index.bank()] for index in fitted.indexes]
    samples = [[x.sample] for x in fitted.variations or []]
    n_known = len(fitted.known)
    for other, new in joining:
        numbers = np.full(len(other.known), -1)
        numbers[new] = np.arange(n_known, n_known + len(new))
        n_known += len(new)
        for parts, index in zip(banks, other.indexes, strict=True):
            parts.append(_renumber(index.bank(), numbers, owners))
        for parts, x in zip(samples, other.variations or [], strict=True):
            parts.append(_renumber_sample(x.sample, numbers, owners))
    return banks, samples, n_known


def _renumber(bank, numbers, owners):
    """Return the rows of images that have a new number, under that number."""
    images = numbers[bank.places[:, 0]]
    is_new = images >= 0
    images = images[is_new]
    places = np.column_stack([images, bank.places[is_new, 1]]).astype(np.int32)
    return Bank(bank.rows[is_new], owners[images].astype(np.int32), places)


def _renumber_sample(sample, numbers, owners):
    images = numbers[sample.images]
    is_new = images >= 0
    return PatchSample(sample.rows[is_new], owners[images[is_new]], images[is_new])


def drop_images(fitted, is_dropped, context):
    """Return a bank without some images, and without any feedback.

    As if they had never joined it. Of a reduced bank, which others would have been
    chosen for without them, their patches alone go.
    """
    kept = np.flatnonzero(~is_dropped)
    numbers = np.full(len(is_dropped), -1)
    numbers[kept] = np.arange(len(kept))
    _, owners = np.unique(fitted.owners[kept], return_inverse=True)
    pictures = fitted.pictures
    banks = [_renumber(index.bank(), numbers, owners) for index in fitted.indexes]
    samples = [
        _renumber_sample(x.sample, numbers, owners) for x in fitted.variations or []
    ]
    indexes = index_banks(banks, context)
    known, sizes, files = (
        [x[i] for i in kept] for x in (fitted.known, fitted.sizes, fitted.files)
    )
    return fitted.change(
        indexes=indexes,
        known=known,
        owners=owners,
        n_averaged=int((~is_dropped)[: fitted.n_averaged].sum()),
        variations=measure_variations(samples, indexes, context),
        pictures=None if pictures is None else pictures[kept],
        sizes=sizes,
        files=files,
        feedback=None,
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
    n_owners = len(np.unique(owners))
    return count_folds(bank_size, n_owners, n_rows, n_features, dense.most_rows)


def find_folds(owners, n_folds):
    """Return who is left out for each image, and the sizes of folds or None."""
    if not n_folds:
        return owners, None
    return owners % n_folds, np.bincount(owners % n_folds, minlength=n_folds)


def measure_variations(samples, indexes, context):
    """Return the local variation of samples of each scale; None without samples."""
    if not samples:
        return None
    context.report.log("measuring how much normal patches vary")
    pairs = zip(samples, indexes, strict=True)
    return [Variation(sample, index, context.device) for sample, index in pairs]


def index_banks(banks, context):
    """Index the bank of every scale."""
    options, log, indexes = context.options, context.report.log, []
    how = options.neighbors, context.device, options.n_jobs
    for bank in banks:
        log(f"indexing {len(bank.rows):,} patches")
        indexes.append(make_index(bank, *how, draw_seed(context.rng), log))
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
