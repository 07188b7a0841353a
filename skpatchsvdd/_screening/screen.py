"""A set of images that vouch for each other, grown from the most usual ones.

Several defective images of one kind lend each other patches, so that each of them, left
out alone, looks normal. Half of the images, those that have their like in many others,
are the first set. Then it grows: an image joins if its score by the images of the set
is near theirs. What never joins was not vouched for by its own kind.
"""

import numpy as np
import torch

from skpatchsvdd._bank import PatchSample, Variation
from skpatchsvdd._comparison import compare
from skpatchsvdd._encoding import DenseSetting, ProceduralEncoder
from skpatchsvdd._scoring import DeviceBank, FittedBank, Found, read_distances
from skpatchsvdd._screening.suspects import (
    IMPLAUSIBLE,
    count_deviations,
    measure_plausibility,
)
from skpatchsvdd._training import whiten
from skpatchsvdd._utils import as_columns, expand, halve_squares

# Images that are compared with each other, at most: the others are compared with these.
_N_COMPARED = 64
# Patches of an image and scale that are compared, about.
_N_PATCHES = 400
# The first set: the fraction of the images that a patch must be like one of, how many
# patches of a scale decide, and how often the set is chosen anew by its own scores.
_LIKE, _N_LARGEST, _N_CHOICES = 1 / 4, 4, 5
# Patches whose distances give local normal variation, and the largest distance.
_N_SAMPLED, _FAR = 4096, 1e4
# The deviations from the scores of the set up to which an image joins it.
_FAR_AWAY = 2.5
_MID_GREY = np.full((1, 1, 1), 0.5, dtype=np.float32)


def find_defective(normal, options, device, roi, n_defective=None):
    """Return which of `NormalImages` are to be set aside, bool, and p-values, (n,).

    Those that the others do not vouch for; or `n_defective`, the least plausible ones.
    """
    n = len(normal)
    compared = np.linspace(0, n - 1, min(n, _N_COMPARED)).astype(int)
    stack = normal.stack.take(compared)
    screen = Screen(stack, normal.owners[compared], options, device, roi)
    members, known = screen.grow()
    scores = np.empty(n)
    scores[compared] = known
    others = np.setdiff1d(np.arange(n), compared)
    if len(others):
        stack = normal.stack.take(others)
        scores[others] = screen.score_others(stack, normal.owners[others], members)
    p_values = measure_plausibility(scores, known[members])
    if n_defective is None:
        is_defective = p_values < IMPLAUSIBLE
        is_defective[compared[members]] = False
    else:
        is_defective = np.zeros(n, dtype=bool)
        is_defective[np.argsort(p_values, kind="stable")[:n_defective]] = True
    return is_defective, p_values


class Screen:
    """Some images, and how far their patches are from those of each other one.

    By the features of "procedural", half whitened and not trained, of every patch or
    every few, and by distances as they are: local normal variation would be that of
    defective images, too.
    """

    def __init__(self, images, owners, options, device, roi):
        *size, n_channels = images.image_shape
        encoder = ProceduralEncoder.make_pretrained(n_channels, size)
        setting = DenseSetting(
            tuple(size), _MID_GREY, 1.0, encoder.strides, device, roi
        )
        self._dense = setting.make(whiten(encoder, images, setting))
        self._sees_damage = options.comparison_weight > 0
        rows, self._pictures = self._encode(images)
        self._rows = [torch.stack(x) for x in rows]  # (n, n_patches, D) by scale
        self._owners = torch.from_numpy(np.asarray(owners)).to(device)
        self._distances = [
            self._compare([x[i] for x in self._rows], owner)
            for i, owner in enumerate(self._owners)
        ]
        variations = None
        if self._sees_damage:
            variations = [self._make_variation(k) for k in range(len(self._rows))]
        fitted = FittedBank(
            setting=setting,
            indexes=[None] * len(self._rows),
            units=[0.0] * len(self._rows),
            variations=variations,
            comparison_weight=options.comparison_weight,
            score_pixels=options.score_pixels,
        )
        self._bank = DeviceBank(self._dense, fitted)
        self._variation = [
            self._measure([x[i] for x in self._rows], i) for i in range(len(images))
        ]

    def grow(self):
        """Return the members of the set, as numbers, and the score of each image."""
        members = self._choose_usual()
        while True:
            scores = self._score_all(members)
            outside = np.setdiff1d(np.argsort(-scores), members, assume_unique=True)
            nearest = outside[: -(-len(outside) // 2)]  # the others may be like these
            away = count_deviations(scores[nearest], scores[members])
            joining = nearest[away <= _FAR_AWAY]
            if len(joining) == 0:
                return members, scores
            members = np.sort(np.append(members, joining))

    def _choose_usual(self):
        """Return half of the images, those most alike."""
        n, members = len(self._distances), None
        n_like = max(int(_LIKE * n), 1)
        far = self._measure_farthest(lambda x: x.kthvalue(n_like, dim=1).values)
        for _ in range(_N_CHOICES):
            former, members = members, far.argsort()[: (n + 1) // 2].sort().values
            if former is not None and torch.equal(members, former):
                break
            far = self._measure_farthest(lambda x: x[:, members].amin(dim=1))  # noqa: B023
        return members.cpu().numpy()

    def _measure_farthest(self, measure):
        """Return how far the farthest patches of images are, as a function tells."""
        logs = []
        for scale in zip(*self._distances, strict=True):
            far = torch.stack([measure(x.float()) for x in scale]).clamp(1e-6, _FAR)
            largest = far.topk(min(_N_LARGEST, far.shape[1]), dim=1).values
            logs.append(largest.log().mean(dim=1))
        return torch.stack(logs).mean(dim=0)

    def score_others(self, images, owners, members):
        """Return the scores of other images by the members."""
        scores = []
        for i in range(len(images)):
            rows, pictures = self._encode(images.take([i]))
            rows = [x[0] for x in rows]
            distances = self._compare(rows, int(owners[i]))
            own = distances, self._measure(rows), pictures
            scores.append(self._score(*own, members))
        return np.array(scores)

    def _encode(self, images):
        """Return, by scale, the patches of each image, and what a comparison sees."""
        rows, pictures = [], []
        for _, batch in images.batches(self._dense.batch_size):
            batch = self._dense.move(batch)
            features = self._dense.encode(batch)
            steps = [_choose_step(x.shape[1:3]) for x in features]
            pairs = zip(features, steps, strict=True)
            thinned = [x[:, ::step, ::step].flatten(1, 2) for x, step in pairs]
            rows += zip(*thinned, strict=True)
            if self._sees_damage:
                pictures.append(self._dense.picture(batch))
        pictures = torch.cat(pictures) if pictures else None
        return list(zip(*rows, strict=True)), pictures

    def _compare(self, rows, owner):
        """Return how far patches are from the nearest of each image, by scale.

        Images of the same owner are infinitely far.
        """
        found = []
        for x, known in zip(rows, self._rows, strict=True):
            known_rows = known.flatten(0, 1)
            halves = expand(halve_squares(known_rows), x, as_columns(known_rows))
            halves = halves.view(len(x), *known.shape[:2]).amin(dim=2)
            halves += halve_squares(x)[:, None]
            distances = (2 * halves).clamp(min=0).sqrt().clamp(max=_FAR)
            distances[:, self._owners == owner] = torch.inf
            found.append(distances.half())
        return found

    def _make_variation(self, scale):
        """Return how far patches of images are from their like in all others."""
        rows = self._rows[scale]
        n, n_patches, _ = rows.shape
        n_each = min(max(_N_SAMPLED // n, 1), n_patches)
        places = np.linspace(0, n_patches - 1, n_each).astype(int)
        distances = torch.stack([x[scale][places] for x in self._distances])
        distances = distances.float().amin(dim=2).clamp(max=_FAR)
        owners = self._owners.cpu().numpy()
        sample = PatchSample(rows[:, places].cpu().numpy(), owners, np.arange(n))
        return Variation(sample, _Measured(distances), rows.device)

    def _measure(self, rows, number=None):
        """Return the local normal variation at patches of an image, by scale."""
        if self._bank.variations is None:
            return None
        owner = -1 if number is None else int(self._owners[number])
        pairs = zip(self._bank.variations, rows, strict=True)
        return [x.measure(own[None], [owner])[0] for x, own in pairs]

    def _score_all(self, members):
        pictures = self._pictures
        return np.array(
            [
                self._score(
                    self._distances[i],
                    self._variation[i],
                    None if pictures is None else pictures[i : i + 1],
                    members,
                )
                for i in range(len(self._distances))
            ]
        )

    def _score(self, distances, variation, picture, members):
        """Return the score of an image by some of the others."""
        members = torch.from_numpy(members).to(self._owners.device)
        nearest = [x[:, members].float().amin(dim=1) for x in distances]
        found = Found(
            self._lay_out([x.clamp(max=_FAR) for x in nearest]),
            None if variation is None else self._lay_out(variation),
            None,
        )
        logits = None
        if self._sees_damage:
            measures = found.distances, found.variation, self._bank.typical
            logits = compare(picture, *measures, self._dense)
        return -float(read_distances(found, logits, self._bank)[0].abnormality)

    def _lay_out(self, values):
        """Return values of thinned patches on the grids of all, by scale."""
        laid_out = {}
        for k, x in enumerate(values):
            rows, cols = self._dense.grids[k]
            step = _choose_step((rows, cols))
            down, across = (
                torch.arange(n, device=x.device) // step for n in (rows, cols)
            )
            grid = x.view(int(down[-1]) + 1, int(across[-1]) + 1)
            laid_out[k] = grid[down][:, across][None]
        return laid_out


class _Measured:
    """What `Variation` asks an index for, known before."""

    def __init__(self, distances):
        self._distances = distances

    def query(self, rows, left_out):
        return self._distances


def _choose_step(grid):
    return int(np.ceil(np.sqrt(max(np.prod(grid) / _N_PATCHES, 1))))
