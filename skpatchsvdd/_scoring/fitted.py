"""The memory bank of a fitted estimator: building, extending, scoring by it."""

import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from skpatchsvdd._bank import Bank, Sampler, Variation, collect_banks, make_index
from skpatchsvdd._encoding import DenseSetting, find_units
from skpatchsvdd._scoring.inspector import Inspector
from skpatchsvdd._utils import Saved, draw_seed


class _Memory:
    """Holds the last inspector and encoder, each with what it was made for."""

    inspector = encoder = None


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedBank(Saved):
    """The indexed bank of a fitted estimator, and all that inspection needs besides.

    `inspector` makes it work on a device, and remembers the last inspector for as long
    as nothing changes. Deep copies and pickles hold nothing of a device. Threads may
    share one object: at worst two of them make the same inspector.
    """

    setting: DenseSetting  # how images are encoded, on no device
    indexes: list  # one for each scale, as are units and variations
    units: list  # how positions are appended to features
    known: list = ()  # digests of the images in the bank, bytes
    # The owner, image or group, of each known image: rows of the same owner are left
    # out when it is scored.
    owners: np.ndarray | None = None
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
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False)

    def inspector(self, encoder, device):
        """Return an `Inspector` on a device, the last one if nothing has changed.

        The weights of the encoder may have been changed since.
        """
        self.check_file()
        versions = [p._version for p in encoder.parameters()]  # count changes
        made_for, memory = (encoder, versions, device), self._memory
        last = memory.inspector
        if last is None or last[0] != made_for:
            dense = memory.encoder
            if dense is None or dense[0] != made_for:
                setting = self.setting._replace(device=device)
                memory.encoder = dense = made_for, setting.make(encoder)
            memory.inspector = last = made_for, Inspector(dense[1], self)
        return last[1]

    def change(self, **changes):
        """Return one with other values of some parameters, which shares the encoder."""
        changed = replace(self, **changes)
        changed._memory.encoder = self._memory.encoder
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
        return {"_memory": _Memory()}


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
    with context.report.progress("encoding images", len(images)) as progress:
        banks = collect_banks(
            dense,
            images,
            units,
            options.bank_size,
            rng,
            progress=progress,
            owners=normal.owners,
            samplers=samplers,
            pictures=pictures,
        )
    indexes = index_banks(banks, context)
    samples = samplers and [sampler.result() for sampler in samplers]
    return FittedBank(
        setting=context.setting._replace(device=None),
        indexes=indexes,
        units=units,
        known=normal.known,
        owners=normal.owners,
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
    images, rng, former = new.stack, context.rng, fitted.variations
    pictures = None if fitted.pictures is None else [fitted.pictures]
    samplers = samples = None
    if former is not None:
        sampler_rng = _fork(rng)
        n_each = [x.sample.rows.shape[1] for x in former]
        samplers = [Sampler(len(images), sampler_rng, n) for n in n_each]
    with context.report.progress("adding images", len(images)) as progress:
        banks = collect_banks(
            context.inspect(fitted).encoder,
            images,
            fitted.units,
            context.options.bank_size,
            rng,
            former=[index.bank() for index in fitted.indexes],
            n_former=len(fitted.known),
            progress=progress,
            owners=new.owners,
            samplers=samplers,
            pictures=pictures,
        )
    indexes = index_banks(banks, context)
    if former is not None:
        pairs = zip(former, samplers, strict=True)
        samples = [x.sample.join(sampler.result(), sampler_rng) for x, sampler in pairs]
    return fitted.change(
        indexes=indexes,
        known=[*fitted.known, *new.known],
        owners=np.concatenate([fitted.owners, new.owners]),
        variations=measure_variations(samples, indexes, context),
        pictures=None if pictures is None else np.concatenate(pictures),
        sizes=[*fitted.sizes, *images.sizes],
        files=[*fitted.files, *images.files],
    )


def relabel(fitted, owners, context):
    """Return a `FittedBank` whose images have other owners, which are left out."""
    banks = [index.bank() for index in fitted.indexes]
    banks = [Bank(x.rows, owners[x.places[:, 0]], x.places) for x in banks]
    indexes, samples = index_banks(banks, context), None
    if fitted.variations is not None:
        samples = [x.sample for x in fitted.variations]
        samples = [x._replace(owners=owners[x.owners]) for x in samples]
    variations = measure_variations(samples, indexes, context)
    return fitted.change(indexes=indexes, owners=owners, variations=variations)


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


def score_rows(fitted, inspector, report):
    """Score the images all of whose patches a bank holds, each without its own ones.

    The inspector is that of this bank, or of a part of it. Returns, (2, n_images), how
    abnormal each image is, without feedback and by what it raises; NaN for images some
    of whose patches are not there.
    """
    dense, n_images = inspector.encoder, len(fitted.known)
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
            features = []
            for k, own in enumerate(zip(banks, orders, starts, strict=True)):
                bank, order, at = own
                rows = [bank.rows[order[at[i] : at[i + 1]]] for i in some]
                features.append(_lay_out(np.stack(rows), dense, k))
            owners = [int(fitted.owners[i]) for i in some]
            pictures = None
            if fitted.pictures is not None:
                pictures = dense.move(fitted.pictures[some])
            scores[:, some] = inspector.score_features(features, owners, pictures)
            progress(start + len(some))
    return scores


def _lay_out(rows, dense, scale):
    """Return the features of images' patches on their grid, (n, rows, cols, D)."""
    height, width = dense.grids[scale]
    shape = len(rows), height * width, rows.shape[2]
    features = np.zeros(shape, dtype=np.float32)
    features[:, dense.cells[scale]] = rows
    features = torch.from_numpy(features).to(dense.device)
    return features.unflatten(1, (height, width))
