"""Images in, anomaly maps and scores out: encode, search, spread, join."""

import functools
import weakref
from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._comparison import Comparer
from skpatchsvdd._gpu import SharedGraphedCall, prefetch, run_concurrently
from skpatchsvdd._images import KnownImages, pixels_to_float
from skpatchsvdd._scoring.maps import (
    find_covering,
    geometric_mean,
    join_maps,
    mean_of_largest,
    spread_scores,
)
from skpatchsvdd._scoring.regions import Sight

# How many of the largest pixels are made exact per round: fewer calls than one by one,
# and little wasted work.
_N_SETTLED = 256
# Logits of what is not looked at.
_UNDAMAGED = -1.0
# By how much a pixel is raised, at least, that is like a known defect.
_RAISED = 1.05


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


class Reading(NamedTuple):
    """What patches of images say of their pixels."""

    maps: list  # of distances and, with variations, relative ones, (n, height, width)
    compared: torch.Tensor | None = None  # of both, times how sure the comparison is


class Inspector:
    """Makes anomaly maps and scores from a `DenseEncoder` and a `FittedBank`.

    An image of the bank is inspected as if it had not been there: without the rows of
    its owner, among which it would find itself at distance zero, and without its own
    part in a centre that is a mean.

    With variations there are two maps, of distances as they are and in units of what is
    usual for such patches; a pixel, and the score of an image, is the geometric mean of
    both. With a comparison, pixels are multiplied by how sure it is that there is
    damage, and the score is the geometric mean of those without it and with it: it
    tells small damage apart from what varies, and knows less of large changes.

    The `feedback` of the bank, if there is any, changes distances and says how the
    changed ones count; this class knows no more of it than the methods that it calls,
    `measure`, `apply` and `count`, and the digests of `corrected` images, which count
    as normal.
    """

    def __init__(self, encoder, bank):
        self.encoder = encoder
        self.indexes = bank.indexes
        self.units = bank.units
        self.variations = bank.variations
        self._weights = (1 - bank.relative_weight, bank.relative_weight)
        self._compare, self._comparison_weight = None, bank.comparison_weight
        if bank.comparison_weight > 0:
            typical = [x.typical for x in bank.variations]
            self._compare = Comparer(encoder, typical)
        # No more than a quarter of what is looked at.
        n_pixels = encoder.image_size[0] * encoder.image_size[1]
        self._roi = None
        if encoder.roi is not None:
            n_pixels = int(encoder.roi.sum())
            self._roi = torch.tensor(encoder.roi, device=encoder.device)
        self.score_pixels = max(min(bank.score_pixels, n_pixels // 4), 1)
        # A constant centre is not a mean of images: there is nothing to leave out.
        self._n_averaged = bank.n_averaged if encoder.center.size > 1 else 0
        self._owners = bank.owners
        self._feedback, self._levels, corrected = bank.feedback, None, set()
        if self._feedback is not None:
            corrected = self._feedback.corrected
            self._levels = torch.tensor(
                self._feedback.levels, dtype=torch.float32, device=encoder.device
            )
        # Images of the bank, and corrected ones that it does not hold.
        self._n_known = len(bank.known)
        digests = [*bank.known, *sorted(corrected.difference(bank.known))]
        self._is_corrected = [digest in corrected for digest in digests]
        self._known = KnownImages(digests)
        # Weak, so that nothing waits for the garbage collector: an inspector is large.
        inspect_new = weakref.WeakMethod(self.inspect_new)
        self._inspect_graphed = SharedGraphedCall(lambda image: inspect_new()(image))

    def maps(self, images, scale=None):
        """Yield the anomaly maps of images, batch by batch, (n_batch, height, width).

        `scale` is the index of a scale, for its map alone.
        """
        maps = ((maps,) for (maps, *_), _ in self._inspect(images, scale))
        for (fetched,) in prefetch(maps, self.encoder.device):
            yield fetched

    def look(self, images):
        """Yield what there is to see in each image of a stack, as `Sight`."""
        batches = (
            (scores.double(), maps, *logits)
            for (maps, scores, *logits), _ in self._inspect(images)
        )
        for arrays in prefetch(batches, self.encoder.device):
            for own in zip(*arrays, strict=True):
                yield Sight(*own)

    def scores(self, images, progress=None, meet_new=None):
        """Return the score of each image: high is normal, (n,).

        ``progress(n)`` is told how many images are done, and ``meet_new(i)`` of those
        that are not known.
        """
        scores, n_done = [], 0
        for (_, batch, *_), known in self._inspect(images):
            if meet_new is not None:
                for i in np.flatnonzero(np.array(known) < 0):
                    meet_new(n_done + int(i))
            scores.append(batch)
            n_done += len(batch)
            if progress is not None:
                progress(n_done)
        return torch.cat(scores).double().cpu().numpy()

    def scores_of_known(self, images, progress=None):
        """Return the scores of images that the bank holds, as `scores` does.

        One that is not recognised has changed since the bank was built, and would find
        its own patches there: it is an error.
        """

        def refuse(i):
            raise RuntimeError(
                f"{images.files[i] or f'image {i}'} has changed while it was learnt "
                "from. Images are read more than once: call again when nothing writes "
                "to them, or with a copy."
            )

        return self.scores(images, progress, refuse)

    def _inspect(self, images, scale=None):
        """Yield, batch by batch, what `_read` returns, and images' known numbers."""
        chosen = range(len(self.indexes)) if scale is None else [scale]
        is_gpu = self.encoder.device.type == "cuda"
        for _, batch in images.batches(self.encoder.batch_size, is_ahead=is_gpu):
            known = self._known.find(batch)
            batch = self.encoder.move(self._leave_out_of_mean(batch, known))
            is_usual = scale is None and len(batch) == 1 and known == [-1]
            is_usual = is_usual and self.encoder.is_capturable
            if is_usual and all(x.is_capturable(batch.device) for x in self.indexes):
                yield self._inspect_graphed(batch), known
            else:
                yield self._read(self._encode(batch, known), chosen), known

    def inspect_new(self, image):
        """Return what `_read` does, of one image on the device that is not a known one.

        A tensor of shape (1, height, width, n_channels) in.
        """
        return self._read(self._encode(image, [-1]), range(len(self.indexes)))

    def encode_each(self, images):
        """Yield what is compared of each image of a stack, as `Encoded`."""
        for _, batch in images.batches(self.encoder.batch_size):
            known = self._known.find(batch)
            batch = self.encoder.move(self._leave_out_of_mean(batch, known))
            encoded = self._encode(batch, known)
            for k in range(len(known)):
                yield encoded.take(k)

    def _encode(self, batch, known):
        """Encode images on the device, of which some may be known, by number."""
        features = self.encoder.add_positions(self.encoder.encode(batch), self.units)
        is_corrected = [i >= 0 and self._is_corrected[i] for i in known]
        known = [i if i < self._n_known else -1 for i in known]
        pictures = None if self._compare is None else self.encoder.picture(batch)
        owners = known
        if self._owners is not None:
            owners = [i if i < 0 else int(self._owners[i]) for i in known]
        return Encoded(features, owners, known, is_corrected, pictures)

    def score_features(self, features, owners, pictures):
        """Score images of known owners whose features are known, with positions.

        Returns arrays of shape (n,): how abnormal they are, without feedback and by
        what it raises.
        """
        n = len(owners)
        encoded = Encoded(features, owners, [-1] * n, [False] * n, pictures)
        readings, _ = self._make_maps(encoded, range(len(self.indexes)))
        found = [self._find_largest(x).double().cpu().numpy() for x in readings]
        return found[0], found[-1]

    def read_scores(self, images, progress):
        """Score new images, before it is decided what of feedback counts.

        Returns scores without what feedback raises, and with all of it, (n_images,).
        """
        found = []
        for start, batch in images.batches(self.encoder.batch_size):
            encoded = self._encode(self.encoder.move(batch), [-1] * len(batch))
            features, owners, *_, pictures = encoded
            found.append(self.score_features(features, owners, pictures))
            progress(start + len(batch))
        return -np.concatenate(found, axis=1)

    def find_decisive(self, images):
        """Return the pixels that the score of a single image comes from, a mask."""
        (one_map,) = next(self.maps(images))
        largest = np.argsort(-one_map, axis=None, kind="stable")[: self.score_pixels]
        mask = np.zeros(one_map.shape, dtype=bool)
        mask.flat[largest] = True
        return mask

    def measure_counted(self, i, encoded, cells):
        """Return the exact distances of some patches of one image as they count, (n,).

        `i` is the index of a scale, and `cells` are the numbers of the patches.
        """
        features = encoded.features[i].flatten(1, 2)
        features = features[:, cells.to(features.device)]
        distances = self.indexes[i].query_exactly(features, encoded.owners)
        if self._feedback is not None:
            some = encoded._replace(features={i: features[:, None]})
            near = self._feedback.measure(some, [i])
            if near is not None:
                distances = self._feedback.apply(distances[:, None], near[i])[:, 0]
        return distances[0].cpu()

    def _read(self, encoded, chosen):
        """Return maps, high is abnormal, and scores, high is normal.

        And, with a comparison, how sure it is of damage, logits.
        """
        readings, logits = self._make_maps(encoded, chosen)
        maps = [self._join_reading(x) for x in readings]
        scores = [self._find_largest(x) for x in readings]
        if len(readings) > 1:
            levels = self._levels[-1:].expand(len(encoded.numbers))
            if max(encoded.numbers) >= 0:  # else without asking the host
                levels = self._levels[encoded.numbers]  # the last one is of new images
            maps = [self._feedback.count(*maps, levels[:, None, None])]
            scores = [self._feedback.count(*scores, levels)]
        for k in np.flatnonzero(encoded.is_corrected):
            maps[0][k], scores[0][k] = 0.0, 0.0
        return maps[0], -scores[0], *logits

    def _join_reading(self, reading):
        """Return the anomaly maps of images."""
        if reading.compared is not None:
            return reading.compared
        return geometric_mean(reading.maps, self._weights)

    def _find_largest(self, reading):
        """Return how abnormal images are."""
        largest = [mean_of_largest(x, self.score_pixels) for x in reading.maps]
        found = geometric_mean(largest, self._weights)
        if reading.compared is None:
            return found
        return (found * mean_of_largest(reading.compared, self.score_pixels)).sqrt()

    def _make_maps(self, encoded, chosen):
        """Return readings of images, and how sure the comparison is, a list.

        Of distances as they are and, where feedback may raise them, of raised ones.
        """
        features, owners = encoded.features, encoded.owners
        scales = {i: (i, features[i], owners) for i in chosen}
        calls = [functools.partial(self._measure, *x) for x in scales.values()]
        if self.variations is not None:
            calls += [functools.partial(self._find_usual, *x) for x in scales.values()]
        found = iter(run_concurrently(calls, features[0].device))
        distances = {i: next(found) for i in scales}
        usual = None if self.variations is None else {i: next(found) for i in scales}
        near = None
        if self._feedback is not None:
            near = self._feedback.measure(encoded, scales)
        if any(self.indexes[i].gives_bounds for i in chosen):
            for k, owner in enumerate(owners):
                self._settle(
                    {i: features[i][k] for i in chosen},
                    {i: distances[i][k] for i in chosen},
                    usual and {i: usual[i][k] for i in chosen},
                    near and {i: near[i][k] for i in chosen},
                    owner,
                )
        readings = self._join_readings(distances, usual, near)
        if self._compare is None or len(chosen) < len(self.indexes):
            return readings, []
        logits = self._compare(encoded.pictures, distances, usual)
        maps = [self._join_reading(x) for x in readings]
        sure = [torch.exp(self._comparison_weight * logits)]
        # What a known defect raises counts, whatever the comparison takes it for.
        for raised in maps[1:]:
            is_raised = raised > _RAISED * maps[0]
            sure.append(torch.where(is_raised, sure[0].clamp(min=1), sure[0]))
        triples = zip(readings, maps, sure, strict=True)
        readings = [x._replace(compared=y * z) for x, y, z in triples]
        if self._roi is not None:
            logits = torch.where(self._roi, logits, _UNDAMAGED)
        return readings, [logits]

    def _measure(self, i, features, owners):
        """Return the distances of all patches of a scale, (n, rows, cols)."""
        found = self.indexes[i].query(features.flatten(1, 2), owners)
        return found.view(features.shape[:3])

    def _find_usual(self, i, features, owners):
        """Return what is usual for all patches of a scale, (n, rows, cols)."""
        found = self.variations[i].usual(features.flatten(1, 2), owners)
        return found.view(features.shape[:3])

    def _settle(self, features, bounds, usual, near, owner):
        """Lower the bounds of one image, in place, until its score is certain.

        From the top down: the patches that cover the largest pixels of a map are
        decided exactly, until the largest pixels are those all of whose patches are
        decided. A map in units of what is usual, or by feedback, is a bound wherever
        the distances are.
        """
        is_open = {
            i: torch.full_like(x, self.indexes[i].gives_bounds, dtype=torch.bool)
            for i, x in bounds.items()
        }
        usual = usual and {i: x[None] for i, x in usual.items()}
        near = near and {i: x[None] for i, x in near.items()}
        while True:
            now = {i: x[None] for i, x in bounds.items()}
            readings = self._join_readings(now, usual, near)
            pixels = [self._spread(i, x[None].float())[0] for i, x in is_open.items()]
            open_pixels = torch.stack(pixels).sum(dim=0) > 0
            chosen = torch.zeros_like(open_pixels)
            for one_map in (x for reading in readings for x in reading.maps):
                chosen.view(-1)[self._find_doubtful(one_map[0], open_pixels)] = True
            if not chosen.any():
                return
            for i, x in bounds.items():
                new = self.find_covering(i, chosen) & is_open[i]
                if new.any():
                    x[new] = self.indexes[i].decide(features[i][new], owner)
                    is_open[i] &= ~new

    def _find_doubtful(self, bounds, open_pixels):
        """Return the largest open pixels of a map if they may change its score."""
        n = self.score_pixels
        settled = bounds.masked_fill(open_pixels, 0)
        if mean_of_largest(bounds[None], n) <= mean_of_largest(settled[None], n):
            return torch.zeros(0, dtype=torch.long, device=bounds.device)
        least = settled.flatten().topk(n).values[-1]  # what it takes to count
        doubtful = bounds.masked_fill(~open_pixels, 0).flatten()
        largest, where = doubtful.topk(min(_N_SETTLED, len(doubtful)))
        return where[largest > least]

    def _join_readings(self, distances, usual, near):
        """Return the readings of `_make_maps`."""
        readings = [self._join_all(distances, usual)]
        if near is not None:
            raised = {i: self._feedback.apply(x, near[i]) for i, x in distances.items()}
            readings.append(self._join_all(raised, usual))
        return readings

    def _join_all(self, distances, usual):
        """Return a reading, without a comparison."""
        maps = [self._join(distances)]
        if usual is not None:
            maps.append(self._join({i: x / usual[i] for i, x in distances.items()}))
        return Reading(maps)

    def _join(self, distances):
        maps = [self._spread(i, x) for i, x in distances.items()]
        weights = [self.encoder.scale_weights[i] for i in distances]
        joined = join_maps(maps, weights)
        return joined if self._roi is None else torch.where(self._roi, joined, 0.0)

    def _spread(self, i, scores):
        size, stride = self.encoder.patch_sizes[i], self.encoder.strides[i]
        return spread_scores(scores, size, stride, self.encoder.image_size)

    def find_covering(self, i, pixels):
        """Return the patches of a scale that the values of some pixels come from."""
        size, stride = self.encoder.patch_sizes[i], self.encoder.strides[i]
        return find_covering(pixels, size, stride)

    def _leave_out_of_mean(self, batch, known):
        """Change known images so that the mean of the others is subtracted from them.

        With the mean m of n images, x less the mean of the others is
        (x - m) * n / (n - 1).
        """
        n = self._n_averaged
        has_part = (np.array(known) >= 0) & (np.array(known) < n)
        if n < 2 or not has_part.any():
            return batch
        gain = np.where(has_part, n / (n - 1), 1)
        gain = gain.astype(np.float32)[:, None, None, None]
        batch, mean = pixels_to_float(batch), self.encoder.center
        return np.where(gain == 1, batch, mean + (batch - mean) * gain)
