"""What a fitted estimator knows of normal images, and the inspector made of it."""

import copy

import numpy as np

from skpatchsvdd._bank import Sampler, Variation, collect_banks, make_index
from skpatchsvdd._encoding import find_units
from skpatchsvdd._inspection.inspector import Inspector
from skpatchsvdd._utils import draw_seed


class FittedBank:
    """The indexed bank of a fitted estimator, and all that inspection needs besides.

    `inspector` makes it work on a device, and remembers the last inspector for as long
    as nothing changes. Deep copies and pickles hold nothing of a device. Threads may
    share one object: at worst two of them make the same inspector.

    Parameters
    ----------
    setting : DenseSetting
        How images are encoded. Its device is forgotten.
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
    relative_weight : float
    score_pixels : int
        See `Inspector`.
    sizes, files : list
        The size that each known image came in, and its path or None.
    """

    def __init__(
        self,
        setting,
        indexes,
        units,
        aggregation,
        known,
        owners,
        n_averaged,
        seen,
        variations=None,
        relative_weight=0.0,
        score_pixels=1,
        sizes=(),
        files=(),
    ):
        self._setting = setting._replace(device=None)
        self.sizes = sizes
        self.files = files
        self.indexes = indexes
        self.units = units
        self.aggregation = aggregation
        self.known = known
        self.owners = owners
        self.n_averaged = n_averaged
        self.seen = seen
        self.variations = variations
        self.relative_weight = relative_weight
        self.score_pixels = score_pixels
        self._last = None

    @property
    def setting(self):
        """How images are encoded, on no device."""
        return self._setting

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
        last = self._last
        if last is None or last[0] != made_for:
            last = self._last = made_for, self._make(encoder, device)
        return last[1]

    def check_file(self):
        """Raise if the bank is mapped from a file that is no longer what it was."""
        for index in self.indexes:
            index.check_file()

    def _make(self, encoder, device):
        return Inspector(
            self._setting._replace(device=device).make(encoder),
            self.indexes,
            self.units,
            self.aggregation,
            self.known,
            self.owners,
            self.n_averaged,
            self.variations,
            self.relative_weight,
            self.score_pixels,
        )

    def replace_bank(self, indexes, known, owners, variations):
        """Return a copy with another bank."""
        other = copy.copy(self)
        other.indexes, other.known, other.owners = indexes, known, owners
        other.variations = variations
        return other

    def __getstate__(self):
        return self.__dict__ | {"_last": None}


def build_bank(images, shown, known, owners, encoder, setting, options, rng, report):
    """Encode and index the patches of normal images.

    Parameters
    ----------
    images : ImageStack
        All normal images, which form the bank.
    shown : ndarray of int
        Indices of those the encoder was trained on, which decide how much positions
        count.
    known, owners : list of bytes, ndarray of int
        See `FittedBank`.
    encoder : PatchEncoder
        The trained encoder.
    setting : DenseSetting
        How images are encoded.
    options : Options
        How the bank is built and searched.
    rng : RandomState
        The source of all randomness.
    report : Report
        Says how far it has come.

    Returns
    -------
    fitted : FittedBank
    """
    dense = setting.make(encoder)
    is_whole = len(shown) == len(images)
    compared = images if is_whole else images.take(shown)
    units = find_units(dense, compared, options.position_weight, rng)
    for size, unit in zip(dense.patch_sizes, units, strict=True):
        counts = "count" if unit > 0 else "do not count"
        report.log(f"positions of patches of {size} {counts}")
    samplers = None
    if options.relative_weight > 0:
        sampler_rng = _fork(rng)
        samplers = [Sampler(len(images), sampler_rng) for _ in units]
    with report.progress("encoding images", len(images)) as progress:
        banks = collect_banks(
            dense,
            images,
            units,
            options.bank_size,
            rng,
            progress=progress,
            owners=owners,
            samplers=samplers,
        )
    indexes = index_banks(banks, setting.device, options, rng, report)
    variations = None
    if options.relative_weight > 0:
        samples = [sampler.result() for sampler in samplers]
        variations = _measure_variations(samples, indexes, setting.device, report)
    return FittedBank(
        setting,
        indexes,
        units,
        options.aggregation,
        known,
        owners,
        # With groups, the mean is that of the images trained on: no other image has a
        # part in it.
        len(known) if is_whole else 0,
        set(),
        variations,
        options.relative_weight,
        options.score_pixels,
        images.sizes,
        images.files,
    )


def extend_bank(fitted, images, known, owners, dense, options, rng, report):
    """Let the patches of more images join a bank; return another `FittedBank`.

    `known` and `owners` are those of former and new images, `dense` is a
    `DenseEncoder`.
    """
    n_former = len(fitted.known)
    former = fitted.variations
    samplers = None
    if former is not None:
        sampler_rng = _fork(rng)
        n_each = [x.sample.rows.shape[1] for x in former]
        samplers = [Sampler(len(images), sampler_rng, n) for n in n_each]
    with report.progress("adding images", len(images)) as progress:
        banks = collect_banks(
            dense,
            images,
            fitted.units,
            options.bank_size,
            rng,
            former=[index.bank() for index in fitted.indexes],
            n_former=n_former,
            progress=progress,
            owners=owners[n_former:],
            samplers=samplers,
        )
    indexes = index_banks(banks, dense.device, options, rng, report)
    variations = None
    if former is not None:
        pairs = zip(former, samplers, strict=True)
        samples = [x.sample.join(sampler.result(), sampler_rng) for x, sampler in pairs]
        variations = _measure_variations(samples, indexes, dense.device, report)
    extended = fitted.replace_bank(indexes, known, owners, variations)
    extended.sizes = [*fitted.sizes, *images.sizes]
    extended.files = [*fitted.files, *images.files]
    return extended


def _fork(rng):
    """Return another RandomState, from which draws leave this one as it is."""
    return np.random.RandomState(draw_seed(copy.deepcopy(rng)))


def _measure_variations(samples, indexes, device, report):
    report.log("measuring how much normal patches vary")
    pairs = zip(samples, indexes, strict=True)
    return [Variation(sample, index, device) for sample, index in pairs]


def index_banks(banks, device, options, rng, report):
    """Index the bank of every scale."""
    indexes = []
    for bank in banks:
        seed = draw_seed(rng)
        report.log(f"indexing {len(bank.rows):,} patches")
        indexes.append(
            make_index(
                bank, options.neighbors, device, options.n_jobs, seed, report.log
            )
        )
    return indexes
