"""The path of an image to its score: encode, search, compare, join."""

import weakref
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from skpatchsvdd._comparison import compare
from skpatchsvdd._encoding import DenseSetting
from skpatchsvdd._gpu import SharedGraphedCall, prefetch, run_concurrently
from skpatchsvdd._images import KnownImages, pixels_to_float
from skpatchsvdd._scoring.maps import Found, join, read_distances
from skpatchsvdd._scoring.regions import InspectedImage
from skpatchsvdd._utils import Saved


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedBank(Saved):
    """The indexed bank of a fitted estimator, and all that inspection needs besides.

    The last encoder and `DeviceBank` that were asked for are kept in `_on_device`, each
    with what it was made for; indexes and variations keep their own. Deep copies and
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
    variations: list | None = None  # local normal variation, by scale
    relative_weight: float = 0.0
    comparison_weight: float = 0.0
    # What the comparison sees of each known image, uint8, (n_known, 1 or 3, rows, cols)
    pictures: np.ndarray | None = None
    score_pixels: int = 1
    sizes: list = ()  # the size that each known image came in, (height, width)
    files: list = ()  # and its path or None
    feedback: Any = None  # what people have said, which changes how distances count
    _on_device: dict = field(default_factory=dict, init=False, repr=False)

    def on_device(self, encoder, device):
        """Return the `DeviceBank`, the last one if nothing has changed.

        The weights of the encoder may have been changed since.
        """
        self.check_file()
        versions = [p._version for p in encoder.parameters()]  # count changes
        made_for, kept = (encoder, versions, device), self._on_device
        # Each is looked up once: another thread may ask for one on another device.
        known_for, bank = kept.get("bank", (None, None))
        if known_for != made_for:
            known_for, dense = kept.get("encoder", (None, None))
            if known_for != made_for:
                dense = self.setting._replace(device=device).make(encoder)
                kept["encoder"] = made_for, dense
            bank = DeviceBank(dense, self)
            kept["bank"] = made_for, bank
        return bank

    def change(self, **changes):
        """Return one with other values of some parameters, which shares the encoder."""
        changed = replace(self, **changes)
        if "encoder" in self._on_device:
            changed._on_device["encoder"] = self._on_device["encoder"]
        return changed

    def check_file(self):
        """Raise if the bank is mapped from a file that is no longer what it was."""
        for index in self.indexes:
            index.check_file()

    def _unsaved(self):
        return {"_on_device": {}}


class DeviceBank:
    """A `FittedBank` and its encoder on a device: all that inspection looks at.

    Nothing but attributes. `FittedBank.on_device` makes it, and keeps the last one.
    """

    def __init__(self, encoder, fitted):
        self.encoder = encoder  # a `DenseEncoder`
        self.indexes = fitted.indexes
        self.scales = range(len(fitted.indexes))
        # Held once a graph may read them, which another device must not take away.
        self.searches = None
        self.units = fitted.units
        self.variations = fitted.variations
        self.typical = fitted.variations and [x.typical for x in fitted.variations]
        self.large = fitted.variations and [x.large for x in fitted.variations]
        # How much distances count as they are, and relative to variation.
        self.weights = (1 - fitted.relative_weight, fitted.relative_weight)
        # Beside the product of the maps of all scales, to their weights.
        weights = enumerate(encoder.scale_weights)
        coarse = sum(x for i, x in weights if i not in encoder.details)
        self.comparison_weight = fitted.comparison_weight * coarse
        # The score is the mean of no more than a quarter of what is looked at.
        n_pixels, self.roi = int(np.prod(encoder.image_size)), None
        if encoder.roi is not None:
            n_pixels = int(encoder.roi.sum())
            self.roi = torch.tensor(encoder.roi, device=encoder.device)
        self.score_pixels = max(min(fitted.score_pixels, n_pixels // 4), 1)
        # A constant centre is not a mean of images: there is nothing to leave out.
        self.n_averaged = fitted.n_averaged if encoder.center.size > 1 else 0
        self.owners = fitted.owners
        self.feedback, self.levels, corrected = fitted.feedback, None, set()
        if self.feedback is not None:
            corrected, levels = self.feedback.corrected, self.feedback.levels
            self.levels = torch.tensor(levels, dtype=torch.float32).to(encoder.device)
        # Memorized images come first, then corrected ones that the bank does not hold.
        self.n_memorized = len(fitted.known)
        digests = [*fitted.known, *sorted(corrected.difference(fitted.known))]
        self.is_corrected = [digest in corrected for digest in digests]
        self.recognized = KnownImages(digests)
        # Weak, so that nothing waits for the garbage collector: a bank is large.
        bank = weakref.ref(self)
        self.inspect_graphed = SharedGraphedCall(lambda x: inspect_new(x, bank()))


class Inspected(NamedTuple):
    """What is found in some images, on their device."""

    maps: torch.Tensor  # high is abnormal, (n_images, height, width)
    scores: torch.Tensor  # high is normal, (n_images,)
    logits: torch.Tensor | None = None  # of damage, as maps; None without a comparison


class Encoded(NamedTuple):
    """What is compared of some images."""

    features: list  # by scale, with positions, (n_images, rows, cols, D)
    owners: list  # for each image, whose rows are left out, or -1
    numbers: list  # their numbers among the images of the bank, or -1
    is_corrected: list  # whether an alarm of this very picture was corrected
    pictures: torch.Tensor | None  # what a comparison sees, (n_images, 1 or 3, h, w)

    def take(self, k):
        """Return what belongs to one image."""
        own = slice(k, k + 1)
        features, *others = self
        others = (None if x is None else x[own] for x in others)
        return Encoded([x[own] for x in features], *others)


def inspect_images(images, bank):
    """Yield an `InspectedImage` for each image of a stack."""
    batches = (
        (x.scores.double(), x.maps, *(() if x.logits is None else [x.logits]))
        for x, _ in inspect_batches(images, bank)
    )
    for arrays in prefetch(batches, bank.encoder.device):
        for own in zip(*arrays, strict=True):
            yield InspectedImage(*own)


def make_maps(images, bank, scale=None):
    """Yield the anomaly maps of images, batch by batch, (n_batch, height, width).

    `scale` is the index of a scale, for its map alone.
    """
    batches = ((x.maps,) for x, _ in inspect_batches(images, bank, scale))
    for (maps,) in prefetch(batches, bank.encoder.device):
        yield maps


def score_images(images, bank, progress=None, meet_new=None):
    """Return the score of each image: high is normal, (n,).

    ``progress(n)`` is told how many images are done, and ``meet_new(i)`` of those that
    are not recognized.
    """
    scores, n_done = [], 0
    for inspected, numbers in inspect_batches(images, bank):
        if meet_new is not None:
            for i in np.flatnonzero(np.array(numbers) < 0):
                meet_new(n_done + int(i))
        scores.append(inspected.scores)
        n_done += len(numbers)
        if progress is not None:
            progress(n_done)
    return torch.cat(scores).double().cpu().numpy()


def score_memorized(images, bank, progress=None):
    """Return the scores of images that the bank holds, each without its own patches.

    One that is not recognized has changed since the bank was built, and would find its
    own patches there: it is an error.
    """

    def refuse(i):
        raise RuntimeError(
            f"{images.files[i] or f'image {i}'} has changed while it was learnt from. "
            "Images are read more than once: call again when nothing writes to them, "
            "or with a copy."
        )

    return score_images(images, bank, progress, refuse)


def score_features(features, owners, pictures, bank):
    """Score images of known owners whose features are known, with positions.

    Returns arrays of shape (n,): how abnormal they are, without feedback and by what it
    raises.
    """
    n = len(owners)
    encoded = Encoded(features, owners, [-1] * n, [False] * n, pictures)
    found = search(encoded, bank, bank.scales)
    readings = read_distances(found, find_logits(encoded, found, bank), bank)
    scores = [x.abnormality.double().cpu().numpy() for x in readings]
    return scores[0], scores[-1]


def find_decisive(images, bank):
    """Return the pixels that the score of a single image comes from, a mask."""
    (one_map,) = next(make_maps(images, bank))
    largest = np.argsort(-one_map, axis=None, kind="stable")[: bank.score_pixels]
    mask = np.zeros(one_map.shape, dtype=bool)
    mask.flat[largest] = True
    return mask


def encode_each(images, bank):
    """Yield what is compared of each image of a stack, as `Encoded`."""
    for batch, numbers in _read(images, bank):
        encoded = encode(batch, numbers, bank)
        for k in range(len(numbers)):
            yield encoded.take(k)


def inspect_batches(images, bank, scale=None):
    """Yield `Inspected` and the numbers of recognized images, batch by batch.

    An image of the bank is inspected as if it had not been there: without the rows of
    its owner, among which it would find itself at distance zero, and without its own
    part in a centre that is a mean. With `scale`, the index of one, by it alone.
    """
    scales = bank.scales if scale is None else [scale]
    for batch, numbers in _read(images, bank, bank.encoder.device.type == "cuda"):
        if scale is None and numbers == [-1] and _is_capturable(bank, batch.device):
            yield Inspected(*bank.inspect_graphed(batch)), numbers
        else:
            yield _inspect(encode(batch, numbers, bank), bank, scales), numbers


def inspect_new(image, bank):
    """Inspect one image that is not recognized, (1, height, width, n_channels).

    A tensor on the device in, what there is of `Inspected` out.
    """
    inspected = _inspect(encode(image, [-1], bank), bank, bank.scales)
    return tuple(x for x in inspected if x is not None)


def _is_capturable(bank, device):
    """Whether a CUDA graph can hold `inspect_new`: nothing waits for the host."""
    if not bank.encoder.is_capturable:
        return False
    if bank.searches is None:
        bank.searches = [x.search_on(device) for x in bank.indexes]
    return all(x.is_capturable for x in bank.searches)


def _inspect(encoded, bank, scales):
    found = search(encoded, bank, scales)
    logits = None
    if len(scales) == len(bank.scales):
        logits = find_logits(encoded, found, bank)
    return Inspected(*join(found, logits, encoded, bank))


def _read(images, bank, is_ahead=False):
    """Yield images on the device, and their recognized numbers, batch by batch."""
    for _, batch in images.batches(bank.encoder.batch_size, is_ahead=is_ahead):
        numbers = bank.recognized.find(batch)
        yield bank.encoder.move(_leave_out_of_mean(batch, numbers, bank)), numbers


def _leave_out_of_mean(batch, numbers, bank):
    """Change memorized images so that the mean of the others is subtracted from them.

    With the mean m of n images, x less the mean of the others is (x - m) * n / (n - 1).
    """
    n = bank.n_averaged
    has_part = (np.array(numbers) >= 0) & (np.array(numbers) < n)
    if n < 2 or not has_part.any():
        return batch
    gain = np.where(has_part, n / (n - 1), 1)
    gain = gain.astype(np.float32)[:, None, None, None]
    batch, mean = pixels_to_float(batch), bank.encoder.center
    return np.where(gain == 1, batch, mean + (batch - mean) * gain)


def encode(batch, numbers, bank):
    """Encode images on the device, of which some may be recognized, by number."""
    features = bank.encoder.add_positions(bank.encoder.encode(batch), bank.units)
    is_corrected = [i >= 0 and bank.is_corrected[i] for i in numbers]
    owners = numbers = [i if i < bank.n_memorized else -1 for i in numbers]
    if bank.owners is not None:
        owners = [i if i < 0 else int(bank.owners[i]) for i in numbers]
    pictures = bank.encoder.picture(batch) if bank.comparison_weight > 0 else None
    return Encoded(features, owners, numbers, is_corrected, pictures)


def search(encoded, bank, scales):
    """Compare the patches of some scales with normal ones and known defects."""
    features = {i: encoded.features[i] for i in scales}
    searches = [[x.query for x in bank.indexes]]
    if bank.variations is not None:
        searches.append([x.measure for x in bank.variations])
    calls = [
        partial(own[i], x.flatten(1, 2), encoded.owners)
        for own in searches
        for i, x in features.items()
    ]
    results = iter(run_concurrently(calls, bank.encoder.device))
    found = [
        {i: next(results).view(x.shape[:3]) for i, x in features.items()}
        for _ in searches
    ]
    variation = found[1] if len(found) > 1 else None
    near = None
    if bank.feedback is not None:
        near = bank.feedback.measure(encoded, scales)
    return Found(found[0], variation, near)


def find_logits(encoded, found, bank):
    """Return logits of damage, (n, height, width); None without a comparison."""
    if bank.comparison_weight == 0:
        return None
    measures = found.distances, found.variation, bank.typical
    return compare(encoded.pictures, *measures, bank.encoder)
