"""Images in, anomaly maps out: encode, search, spread, join."""

import functools
import weakref

import numpy as np
import torch

from skpatchsvdd._gpu import SharedGraphedCall, prefetch, run_concurrently
from skpatchsvdd._images import KnownImages, pixels_to_float
from skpatchsvdd._inspection.harmless import lower_distances
from skpatchsvdd._inspection.known_defects import raise_distances
from skpatchsvdd._inspection.maps import (
    find_covering,
    geometric_mean,
    join_maps,
    mean_of_largest,
    spread_scores,
)
from skpatchsvdd._inspection.matches import MATCH, set_boxes

# How many of the largest pixels are made exact per round: fewer calls than one by one,
# and little wasted work.
_N_SETTLED = 256


class Inspector:
    """Makes anomaly maps from an encoder and the indexes of normal features.

    Parameters
    ----------
    encoder : DenseEncoder
        Encodes the images.
    indexes : list of indexes
        One for each scale.
    units : list of float
        How positions were appended to the features of the bank, by scale.
    aggregation : {"multiply", "sum"}
        How to join the scales' maps.
    known : list of bytes
        Digests of the images in the bank. Such an image is inspected as if it had not
        been there: without its own patches, among which it would find itself at
        distance zero, and without its own part in a centre that is a mean.
    owners : ndarray of int of shape (n_known,) or None
        The owner, image or group, of each known image: rows of the same owner are left
        out when it is scored. None leaves out its own.
    n_averaged : int
        The centre is the mean of the first `n_averaged` known images.
    variations : list of Variation or None
        For each scale, the distances that are usual. With them there are two maps, of
        distances as they are and in units of what is usual for such patches; a pixel,
        and the score of an image, is the geometric mean of both.
    relative_weight : float
        Weight of the second map in this mean; the first has the rest of 1.
    score_pixels : int
        How many of the largest pixels of a map the score of an image is the mean of.
    defects : KnownDefects or None
        Patches that are nearer to these count as if they were farther from normal ones.
    corrected : set of bytes
        Digests of known images that are inspected with their own patches in the bank.
    harmless : Harmless or None
        Patches that are near to these count as if they were nearer to normal ones.
    """

    def __init__(
        self,
        encoder,
        indexes,
        units,
        aggregation,
        known=(),
        owners=None,
        n_averaged=0,
        variations=None,
        relative_weight=0.0,
        score_pixels=1,
        defects=None,
        corrected=(),
        harmless=None,
    ):
        self.encoder = encoder
        self.indexes = indexes
        self.units = units
        self.aggregation = aggregation
        self.variations = variations
        self.weights = (1 - relative_weight, relative_weight)
        # No more than a quarter of what is looked at.
        n_pixels = encoder.image_size[0] * encoder.image_size[1]
        self._roi = None
        if encoder.roi is not None:
            n_pixels = int(encoder.roi.sum())
            self._roi = torch.tensor(encoder.roi, device=encoder.device)
        self.score_pixels = max(min(score_pixels, n_pixels // 4), 1)
        # A constant centre is not a mean of images: there is nothing to leave out.
        self.n_averaged = n_averaged if encoder.center.size > 1 else 0
        self._known = KnownImages(known)
        self._owners = owners
        self._defects = defects
        self._harmless = harmless
        self._is_corrected = [digest in corrected for digest in known]
        numbers = (
            {} if harmless is None else {x: i for i, x in enumerate(harmless.known)}
        )
        self._forgiven = [numbers.get(digest, -1) for digest in known]
        self._inside = [_find_inside(encoder, i) for i in range(len(indexes))]
        # Weak, so that nothing waits for the garbage collector: an inspector is large.
        inspect_new = weakref.WeakMethod(self.inspect_new)
        self._inspect_graphed = SharedGraphedCall(lambda image: inspect_new()(image))

    def maps(self, images, scale=None):
        """Yield the anomaly maps of a stack of images, batch by batch.

        Parameters
        ----------
        images : ImageStack
            The images.
        scale : int or None
            The index of a scale, for its map alone.

        Yields
        ------
        maps : ndarray of shape (n_batch, height, width)
        """
        maps = ((maps,) for maps, *_ in self._inspect(images, scale))
        for (fetched,) in prefetch(maps, self.encoder.device):
            yield fetched

    def maps_and_scores(self, images):
        """Yield, batch by batch, anomaly maps and the scores of their images."""
        batches = ((maps, scores.double()) for maps, scores, _ in self._inspect(images))
        yield from prefetch(batches, self.encoder.device)

    def scores(self, images, progress=None):
        """Return the score of each image: high is normal, (n,).

        ``progress(n)`` is told how many images are done.
        """
        return self._collect(images, progress, lambda i: None)

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

        return self._collect(images, progress, refuse)

    def _collect(self, images, progress, meet_new):
        """Return all scores; ``meet_new(i)`` is told of images that are not known."""
        scores, n_done = [], 0
        for _, batch, known in self._inspect(images):
            for i in np.flatnonzero(np.array(known) < 0):
                meet_new(n_done + int(i))
            scores.append(batch)
            n_done += len(batch)
            if progress is not None:
                progress(n_done)
        return torch.cat(scores).double().cpu().numpy()

    def _inspect(self, images, scale=None):
        """Yield, batch by batch, maps and scores of images, and their known numbers."""
        chosen = range(len(self.indexes)) if scale is None else [scale]
        is_gpu = self.encoder.device.type == "cuda"
        for _, batch in images.batches(self.encoder.batch_size, is_ahead=is_gpu):
            known = self._known.find(batch)
            batch = self.encoder.move(self._leave_out_of_mean(batch, known))
            is_usual = scale is None and len(batch) == 1 and known == [-1]
            is_usual = is_usual and self.encoder.is_capturable
            if is_usual and all(x.is_capturable(batch.device) for x in self.indexes):
                maps, scores = self._inspect_graphed(batch)
            else:
                maps, scores = self._inspect_batch(batch, known, chosen)
            yield maps, scores, known

    def _inspect_batch(self, batch, known, chosen):
        """Return the maps and scores of images on the device."""
        features = self.encoder.encode(batch)
        features = self.encoder.add_positions(features, self.units)
        forgiven = [-1 if i < 0 else self._forgiven[i] for i in known]
        maps = self._make_maps(features, self._own(known), chosen, forgiven)
        return geometric_mean(maps, self.weights), self._score(maps)

    def inspect_new(self, image):
        """Return map and score of one image on the device, that is not a known one.

        A tensor of shape (1, height, width, n_channels) in, one of shape (1, height,
        width) and one of shape (1,) out.
        """
        return self._inspect_batch(image, [-1], range(len(self.indexes)))

    def score_features(self, features, owners):
        """Return the scores of images whose features are known, (n,).

        Parameters
        ----------
        features : list of tensors of shape (n, rows, cols, D)
            One for each scale, with positions.
        owners : list of int
            The owner of each image.
        """
        forgiven = [-1] * len(owners)
        maps = self._make_maps(features, owners, range(len(self.indexes)), forgiven)
        return self._score(maps).double().cpu().numpy()

    def measure_features(self, features, owner):
        """Return the exact distances of an image's patches, and what is usual for them.

        Parameters
        ----------
        features : list of tensors of shape (1, rows, cols, D)
            One for each scale, with positions.
        owner : int
            The owner of the image.

        Returns
        -------
        distances : list of tensors of shape (1, rows, cols)
            0 where patches are not looked at.
        usual : list of tensors of shape (1, rows, cols) or None
        """
        distances = [
            torch.where(self._inside[i], self._measure_exactly(i, x, owner), 0.0)
            for i, x in enumerate(features)
        ]
        if self.variations is None:
            return distances, None
        calls = enumerate(features)
        return distances, [self._find_usual(i, x, [owner]) for i, x in calls]

    def score_distances(self, distances, usual):
        """Return the score of an image with such distances; see `measure_features`."""
        usual = None if usual is None else dict(enumerate(usual))
        return float(self._score(self._join_all(dict(enumerate(distances)), usual))[0])

    def find_decisive(self, images):
        """Return the pixels that the score of a single image comes from, a mask."""
        (one_map,) = next(self.maps(images))
        largest = np.argsort(-one_map, axis=None, kind="stable")[: self.score_pixels]
        mask = np.zeros(one_map.shape, dtype=bool)
        mask.flat[largest] = True
        return mask

    def explain(self, images, pixels):
        """Find the normal patches that the patches of some pixels are compared with.

        Parameters
        ----------
        images : ImageStack
            The images.
        pixels : list of ndarray of int of shape (n_pixels, 2)
            For each image, rows and columns of pixels.

        Returns
        -------
        matches : list of structured ndarray of shape (n_pixels, n_scales)
            With the fields of `MATCH`: of the patches that cover a pixel, the one that
            is farthest from all normal ones, and the nearest of these. Boxes are those
            of images as they are inspected.
        """
        pairs = zip(self.encode_each(images), pixels, strict=True)
        return [self._explain_image(*encoded, own) for encoded, own in pairs]

    def encode_each(self, images):
        """Yield, for each image, its features by scale, (rows, cols, D), and owner."""
        for _, batch in images.batches(self.encoder.batch_size):
            known = self._known.find(batch)
            features = self.encoder.encode(self._leave_out_of_mean(batch, known))
            features = self.encoder.add_positions(features, self.units)
            for k, owner in enumerate(self._own(known)):
                yield [x[k] for x in features], owner

    def _explain_image(self, features, owner, pixels):
        matches = np.zeros((len(pixels), len(features)), dtype=MATCH)
        for i, x in enumerate(features):
            measured = None
            if self._harmless is not None:  # which depends on what is around a patch
                measured = self._measure_told(i, x[None], owner).flatten()
            cells = [
                self._find_farthest(i, x, owner, pixel, measured) for pixel in pixels
            ]
            found = self.indexes[i].find_nearest(x.flatten(0, 1)[cells], owner)
            matches["distance"][:, i], places = found
            matches["image"][:, i] = places[:, 0]
            set_boxes(matches[:, i], "", self.encoder, i, np.array(cells))
            set_boxes(matches[:, i], "image_", self.encoder, i, places[:, 1])
        return matches

    def _find_farthest(self, i, features, owner, pixel, measured):
        """Return the number of the patch over a pixel that is farthest from normal.

        By what people have said; `measured` is that of all patches where it is known.
        """
        chosen = torch.zeros(self.encoder.image_size, dtype=torch.bool)
        chosen[tuple(pixel)] = True
        covering = self._covering(i, chosen).flatten().nonzero()[:, 0]
        inside = covering[torch.isin(covering, torch.from_numpy(self.encoder.cells[i]))]
        covering = inside if len(inside) else covering
        if measured is None:
            some = features.flatten(0, 1)[covering.to(features.device)]
            distances = self._measure_told(i, some[None, None], owner).flatten()
        else:
            distances = measured[covering.to(measured.device)]
        return int(covering[int(distances.argmax())])

    def _measure_told(self, i, features, owner):
        """Return the exact distances of patches by what people have said."""
        distances = self._measure_exactly(i, features, owner)
        known = self._defects and self._find_known(i, features, [owner])
        told = self._find_told(i, features, distances, known, [-1])
        return self._heed(i, distances, told)

    def _measure_exactly(self, i, features, owner):
        found = self.indexes[i].query_exactly(features.flatten(1, 2), [owner])
        return found.view(features.shape[:3])

    def _score(self, maps):
        largest = [mean_of_largest(x, self.score_pixels) for x in maps]
        return -geometric_mean(largest, self.weights)

    def _make_maps(self, features, owners, chosen, forgiven):
        """Return the maps that are multiplied, each of shape (n, height, width).

        `forgiven` holds the numbers of images among the corrected ones, or -1.
        """
        scales = {i: (i, features[i], owners) for i in chosen}
        calls = [functools.partial(self._measure, *x) for x in scales.values()]
        if self.variations is not None:
            calls += [functools.partial(self._find_usual, *x) for x in scales.values()]
        if self._defects is not None:
            calls += [functools.partial(self._find_known, *x) for x in scales.values()]
        found = iter(run_concurrently(calls, features[0].device))
        distances = {i: next(found) for i in scales}
        usual = None if self.variations is None else {i: next(found) for i in scales}
        told = None
        if self._defects is not None or self._harmless is not None:
            self._decide_far(features, distances, owners)
            known = {i: self._defects and next(found) for i in scales}
            told = {
                i: self._find_told(i, features[i], distances[i], known[i], forgiven)
                for i in scales
            }
        if any(self.indexes[i].gives_bounds for i in chosen):
            for k, owner in enumerate(owners):
                self._settle(
                    {i: features[i][k] for i in chosen},
                    {i: distances[i][k] for i in chosen},
                    usual and {i: usual[i][k] for i in chosen},
                    told and {i: told[i][:, k] for i in chosen},
                    owner,
                )
        return self._join_all(distances, usual, told)

    def _measure(self, i, features, owners):
        """Return the distances of all patches of a scale, (n, rows, cols)."""
        found = self.indexes[i].query(features.flatten(1, 2), owners)
        return found.view(features.shape[:3])

    def _find_usual(self, i, features, owners):
        """Return what is usual for all patches of a scale, (n, rows, cols)."""
        found = self.variations[i].usual(features.flatten(1, 2), owners)
        return found.view(features.shape[:3])

    def _decide_far(self, features, distances, owners):
        """Make exact, in place, bounds of what is compared with harmless patches."""
        if self._harmless is None:
            return
        for i, bounds in distances.items():
            if self.indexes[i].gives_bounds:
                for x, own, owner in zip(features[i], bounds, owners, strict=True):
                    is_far = self._harmless.find_far(i, own) & self._inside[i]
                    if is_far.any():
                        own[is_far] = self.indexes[i].decide(x[is_far], owner)

    def _find_known(self, i, features, owners):
        """Return how far all patches of a scale are from known defects."""
        found = self._defects.measure(i, features.flatten(1, 2), owners)
        return found.view(features.shape[:3])

    def _find_told(self, i, features, distances, known, forgiven):
        """Return how far all patches of a scale are from what people know.

        From what is harmless, in units of the distance from which on they count as
        typical, and from known defects, (2, n, rows, cols); infinite where nothing is
        known.
        """
        told = distances.new_full((2, *distances.shape), torch.inf)
        if self._harmless is not None:
            inside = torch.where(self._inside[i], distances, 0.0)
            told[0] = self._harmless.measure(i, features, inside)
            for own, image in zip(told[0], forgiven, strict=True):
                if image >= 0:  # the same picture again
                    own.view(-1)[self._harmless.list_cells(i, image)] = 0.0
        if known is not None:
            told[1] = known
        return told

    def _heed(self, i, distances, told):
        """Return the distances that patches of a scale count with.

        What is like a known defect, and like something harmless, is what is nearer.
        """
        harmless, defects = told
        raised = raise_distances(distances, defects)
        if self._harmless is None:
            return raised
        lowered = lower_distances(distances, harmless, self._harmless.typical[i])
        return torch.where(harmless * distances < defects, lowered, raised)

    def _own(self, known):
        """Return the owners, in the bank, of known images; -1 for the others.

        One that was corrected is inspected as if it were not known.
        """
        known = [-1 if i >= 0 and self._is_corrected[i] else i for i in known]
        if self._owners is None:
            return known
        return [i if i < 0 else int(self._owners[i]) for i in known]

    def _settle(self, features, bounds, usual, told, owner):
        """Lower the bounds of one image, in place, until its score is certain.

        From the top down: the patches that cover the largest pixels of a map are
        decided exactly, until the largest pixels are those all of whose patches are
        decided. A map in units of what is usual is a bound wherever
        the distances are.
        """
        is_open = {
            i: torch.full_like(x, self.indexes[i].gives_bounds, dtype=torch.bool)
            for i, x in bounds.items()
        }
        usual = usual and {i: x[None] for i, x in usual.items()}
        told = told and {i: x[:, None] for i, x in told.items()}
        while True:
            maps = self._join_all({i: x[None] for i, x in bounds.items()}, usual, told)
            pixels = [self._spread(i, x[None].float())[0] for i, x in is_open.items()]
            open_pixels = torch.stack(pixels).sum(dim=0) > 0
            chosen = torch.zeros_like(open_pixels)
            for one_map in maps:
                chosen.view(-1)[self._find_doubtful(one_map[0], open_pixels)] = True
            if not chosen.any():
                return
            for i, x in bounds.items():
                new = self._covering(i, chosen) & is_open[i]
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

    def _join_all(self, distances, usual, told=None):
        """Return the joined maps: of distances, and in units of what is usual."""
        if told is not None:
            distances = {i: self._heed(i, x, told[i]) for i, x in distances.items()}
        maps = [self._join(distances)]
        if usual is not None:
            maps.append(self._join({i: x / usual[i] for i, x in distances.items()}))
        return maps

    def _join(self, distances):
        maps = [self._spread(i, x) for i, x in distances.items()]
        weights = [self.encoder.scale_weights[i] for i in distances]
        joined = join_maps(maps, self.aggregation, weights)
        return joined if self._roi is None else torch.where(self._roi, joined, 0.0)

    def _spread(self, i, scores):
        size, stride = self.encoder.patch_sizes[i], self.encoder.strides[i]
        return spread_scores(scores, size, stride, self.encoder.image_size)

    def _covering(self, i, pixels):
        size, stride = self.encoder.patch_sizes[i], self.encoder.strides[i]
        return find_covering(pixels, size, stride)

    def _leave_out_of_mean(self, batch, known):
        """Change known images so that the mean of the others is subtracted from them.

        With the mean m of n images, x less the mean of the others is
        (x - m) * n / (n - 1).
        """
        n = self.n_averaged
        has_part = (np.array(known) >= 0) & (np.array(known) < n)
        if n < 2 or not has_part.any():
            return batch
        gain = np.where(has_part, n / (n - 1), 1)
        gain = gain.astype(np.float32)[:, None, None, None]
        batch, mean = pixels_to_float(batch), self.encoder.center
        return np.where(gain == 1, batch, mean + (batch - mean) * gain)


def _find_inside(dense, scale):
    """Return which patches of a scale are looked at, (rows, cols)."""
    height, width = dense.grids[scale]
    inside = torch.zeros(height * width, dtype=torch.bool)
    inside[torch.from_numpy(dense.cells[scale])] = True
    return inside.view(height, width).to(dense.device)
