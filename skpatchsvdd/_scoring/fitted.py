"""The memory bank of a fitted estimator, and the inspector made of it."""

import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

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

    Parameters
    ----------
    setting : DenseSetting
        How images are encoded, on no device.
    indexes : list of indexes
        One for each scale.
    units : list of float
        How positions are appended to the features of each scale.
    aggregation : {"multiply", "sum"}
        How the scales' maps are joined.
    known : list of bytes
        Digests of the images in the bank.
    owners : ndarray of int of shape (n_known,)
        The owner, image or group, of each known image: rows of the same owner are left
        out when it is scored.
    n_averaged : int
        The centre is the mean of the first `n_averaged` known images.
    seen : set of bytes
        Digests of the images that the encoder was trained on.
    variations : list of Variation or None
        For each scale, the distances that are usual.
    relative_weight, comparison_weight : float
    score_pixels : int
        See `Inspector`.
    pictures : ndarray of uint8 of shape (n_known, 1 or 3, rows, cols) or None
        What the comparison sees of each known image, if there is one.
    sizes, files : list
        The size that each known image came in, and its path or None.
    feedback : Feedback or None
        What people have said of images, which changes how distances count.
    """

    setting: DenseSetting
    indexes: list
    units: list
    aggregation: str
    known: list = ()
    owners: np.ndarray | None = None
    n_averaged: int = 0
    seen: set = frozenset()
    variations: list | None = None
    relative_weight: float = 0.0
    comparison_weight: float = 0.0
    pictures: np.ndarray | None = None
    score_pixels: int = 1
    sizes: list = ()
    files: list = ()
    feedback: Any = None
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False)

    def inspector(self, encoder, device):
        """Return an `Inspector` on a device, the last one if nothing has changed.

        Parameters
        ----------
        encoder : PatchEncoder
            The trained encoder; its weights may have been changed since.
        device : torch.device
            Where to compute.
        """
        self.check_file()
        versions = [p._version for p in encoder.parameters()]  # count changes
        made_for = (encoder, versions, device)
        last = self._memory.inspector
        if last is None or last[0] != made_for:
            last = made_for, Inspector(self._encode_on(made_for), self)
            self._memory.inspector = last
        return last[1]

    def change(self, **changes):
        """Return one with other values of some parameters, which shares the encoder."""
        changed = replace(self, **changes)
        changed._memory.encoder = self._memory.encoder
        return changed

    def _encode_on(self, made_for):
        """Return a `DenseEncoder`, the last one if nothing has changed."""
        last = self._memory.encoder
        if last is None or last[0] != made_for:
            encoder, _, device = made_for
            last = made_for, self.setting._replace(device=device).make(encoder)
            self._memory.encoder = last
        return last[1]

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

    def __setstate__(self, state):
        # Files from before there was a comparison.
        super().__setstate__({"comparison_weight": 0.0, "pictures": None} | state)


def build_bank(normal, encoder, seen, context):
    """Encode and index the patches of normal images.

    Parameters
    ----------
    normal : NormalImages
        The images, all of which form the bank. Those that the encoder was trained on
        decide how much positions count.
    encoder : PatchEncoder
        The trained encoder.
    seen : set of bytes
        See `FittedBank`.
    context : FitContext
        How to do it.

    Returns
    -------
    fitted : FittedBank
    """
    images, options, rng = normal.stack, context.options, context.rng
    dense = context.setting.make(encoder)
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
    variations = None
    if samplers is not None:
        samples = [sampler.result() for sampler in samplers]
        variations = _measure_variations(samples, indexes, context)
    return FittedBank(
        setting=context.setting._replace(device=None),
        indexes=indexes,
        units=units,
        aggregation=options.aggregation,
        known=normal.known,
        owners=normal.owners,
        # With groups, the mean is that of the images trained on: no other image has a
        # part in it.
        n_averaged=len(normal) if normal.all_are_shown else 0,
        seen=seen,
        variations=variations,
        relative_weight=options.relative_weight,
        comparison_weight=options.comparison_weight,
        pictures=None if pictures is None else np.concatenate(pictures),
        score_pixels=options.score_pixels,
        sizes=images.sizes,
        files=images.files,
    )


def extend_bank(fitted, new, dense, context):
    """Let the patches of more images join a bank; return another `FittedBank`.

    Parameters
    ----------
    fitted : FittedBank
        The bank as it is.
    new : NormalImages
        What joins it. The encoder is not trained on any of them.
    dense : DenseEncoder
        Encodes them.
    context : FitContext
        How to do it.
    """
    images, rng = new.stack, context.rng
    former = fitted.variations
    pictures = None if fitted.pictures is None else [fitted.pictures]
    samplers = None
    if former is not None:
        sampler_rng = _fork(rng)
        n_each = [x.sample.rows.shape[1] for x in former]
        samplers = [Sampler(len(images), sampler_rng, n) for n in n_each]
    with context.report.progress("adding images", len(images)) as progress:
        banks = collect_banks(
            dense,
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
    variations = None
    if former is not None:
        pairs = zip(former, samplers, strict=True)
        samples = [x.sample.join(sampler.result(), sampler_rng) for x, sampler in pairs]
        variations = _measure_variations(samples, indexes, context)
    return fitted.change(
        indexes=indexes,
        known=[*fitted.known, *new.known],
        owners=np.concatenate([fitted.owners, new.owners]),
        variations=variations,
        pictures=None if pictures is None else np.concatenate(pictures),
        sizes=[*fitted.sizes, *images.sizes],
        files=[*fitted.files, *images.files],
    )


def relabel(fitted, owners, context):
    """Return a `FittedBank` whose images have other owners, which are left out."""
    banks = [index.bank() for index in fitted.indexes]
    banks = [Bank(x.rows, owners[x.places[:, 0]], x.places) for x in banks]
    indexes = index_banks(banks, context)
    variations = fitted.variations
    if variations is not None:
        samples = [x.sample for x in variations]
        samples = [x._replace(owners=owners[x.owners]) for x in samples]
        variations = _measure_variations(samples, indexes, context)
    return fitted.change(indexes=indexes, owners=owners, variations=variations)


def _fork(rng):
    """Return another RandomState, from which draws leave this one as it is."""
    return np.random.RandomState(draw_seed(copy.deepcopy(rng)))


def _measure_variations(samples, indexes, context):
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
