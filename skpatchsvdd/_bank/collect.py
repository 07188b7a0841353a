"""The bank: all normal features, or a part that covers them, and its index."""

import sys
from numbers import Integral

import numpy as np
import torch

from skpatchsvdd._bank.approximate import ApproximateIndex
from skpatchsvdd._bank.exact import Bank, ExactIndex, as_tensor
from skpatchsvdd._utils import as_columns, draw_seed, expand, halve_squares

# Bytes of one scale's bank, unless a size is asked for: memory that every machine has.
MAX_BYTES = 2**30
# Parts of the images of which a reduced bank is made. Each image is scored without its
# part: with fewer, much of the bank would be missing then; with more, parts cover less.
_N_FOLDS = 10
# Length to which rows are projected at random before their distances are compared: four
# times less work, and a part that covers the projections covers the rows about as well.
_PROJECTED = 16
# Rows among which the next ones are chosen before all distances are brought up to date;
# their number changes the speed, not the choice.
_N_CANDIDATES = 512
# Rows that are waited for, besides those chosen so far, before choosing again: so many,
# or as many as take so many bytes, on a CPU and on a GPU, which is hardly slower with
# more. Half as many as are chosen in any case.
_CPU_WAITING, _GPU_WAITING = (2**17, 2**26), (2**20, 2**28)
# Bytes of rows that are held on a GPU.
_MOST_ON_GPU = 2**29
# Squared distances up to this fraction of the largest square are rounding errors.
_ROUNDING = 1e-6
# Products held at a time: on a CPU as many as stay in its cache.
_CPU_PRODUCTS, _GPU_PRODUCTS = 2**20, 2**28


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


def make_index(bank, method, device, n_jobs, seed, log=None):
    """Index a bank of normal features, which the index takes over.

    "auto" is exact. "pynndescent" is built with `n_jobs` threads where queries come
    from a CPU; a GPU does without. Both give the same distances, for any seed.
    ``log(message)`` is told of compilations.
    """
    if method != "pynndescent" or device.type != "cpu":
        return ExactIndex(bank, seed)
    if log is not None and "pynndescent" not in sys.modules:
        log("compiling pynndescent, about a minute once in a process")
    return ApproximateIndex(bank, n_jobs, seed)


class Coreset:
    """Keeps few rows of a stream: far from each other, near to all others.

    `size` at most, or all if `n_expected` are no more. `rng` draws the
    projection in which distances are compared. Of `n_others` that are filled at once
    each waits for fewer rows.
    """

    def __init__(self, size, n_expected, n_features, rng, device, n_others=0):
        self.size = size
        n_waiting, n_bytes = _CPU_WAITING if device.type == "cpu" else _GPU_WAITING
        n_waiting = min(n_waiting, max(n_bytes // (4 * n_features), 1))
        n_waiting = -(-n_waiting // (1 + n_others))
        self.capacity = min(n_expected, size + max(n_waiting, size // 2))
        self._seed = draw_seed(rng)
        self._device = device
        # Features that are on a GPU stay there, unless they are many.
        is_small = 4 * self.capacity * n_features <= _MOST_ON_GPU
        self._rows = torch.empty(
            (self.capacity, n_features), device=device if is_small else "cpu"
        )
        self._labels = None
        self._n_held = 0

    def add(self, rows, labels):
        """Take in rows (n, n_features), float32, on any device, and their labels."""
        if self._labels is None:
            shape = (self.capacity, *labels.shape[1:])
            self._labels = np.empty(shape, dtype=np.int32)
        while len(rows):
            if self._n_held == self.capacity:
                self._reduce()
            n = min(len(rows), self.capacity - self._n_held)
            free = slice(self._n_held, self._n_held + n)
            self._rows[free], self._labels[free] = rows[:n], labels[:n]
            self._n_held += n
            rows, labels = rows[n:], labels[n:]

    def result(self):
        """Return the rows kept and their labels, in the order they came in."""
        if self._n_held > self.size:
            self._reduce()
        rows = self._rows[: self._n_held].cpu().numpy()
        labels = self._labels[: self._n_held]
        # Copies of a part, so that the rest of the memory is given back.
        is_part = self._n_held < self.capacity
        return (rows.copy(), labels.copy()) if is_part else (rows, labels)

    def _reduce(self):
        points = self._rows[: self._n_held].to(self._device)
        chosen = choose_centers(self._project(points), self.size)
        n = len(chosen)
        self._labels[:n] = self._labels[chosen]
        self._rows[:n] = self._rows[torch.from_numpy(chosen).to(self._rows.device)]
        self._n_held = n

    def _project(self, points):
        n_features = points.shape[1]
        if n_features <= _PROJECTED:
            return points
        generator = torch.Generator().manual_seed(self._seed)
        shape = (n_features, _PROJECTED)
        projection = torch.randn(shape, generator=generator).to(points)
        return points @ projection


class FoldedCoreset:
    """Keeps few rows of each fold of images, chosen from that fold alone.

    What is kept of one fold does not depend on the images of another: a bank without a
    fold is what it would be had its images never been there. `n_images` is the number
    of images of each fold; labels begin with the number of the fold.
    """

    def __init__(self, size, n_images, n_expected, n_features, rng, device):
        ends = np.cumsum(n_images)
        sizes = np.diff(ends * size // ends[-1], prepend=0)
        self._parts = {
            fold: Coreset(own, n_expected, n_features, rng, device, len(sizes) - 1)
            for fold, own in enumerate(sizes.tolist())
            if own > 0
        }

    def add(self, rows, labels):
        """Take in rows (n, n_features), float32, on any device, and their labels."""
        for fold in np.intersect1d(labels[:, 0], list(self._parts)):
            own = np.flatnonzero(labels[:, 0] == fold)
            chosen = torch.from_numpy(own).to(rows.device)
            self._parts[fold].add(rows[chosen], labels[own])

    def result(self):
        """Return the rows kept and their labels, one fold after the other."""
        found = (part.result() for part in self._parts.values())
        return tuple(np.concatenate(x) for x in zip(*found, strict=True))


def choose_centers(points, n_centers):
    """Choose points one by one, always the one farthest from those chosen so far.

    The first one is farthest from the mean. Distances of all points are brought up to
    date only now and then. In between, the next point is sought among the farthest
    ones, as long as it is certain to be there: what lies nearer cannot have moved away
    since. Fewer than `n_centers` are chosen if all others are copies of chosen ones.
    Returns where they are, in ascending order.
    """
    points = points - points.mean(dim=0)
    half_squares = halve_squares(points)
    lowest = _ROUNDING * float(half_squares.max())
    chosen = [int(half_squares.argmax())]
    nearest = torch.full_like(half_squares, torch.inf)
    _bring_up_to_date(nearest, points, half_squares, chosen)
    while len(chosen) < n_centers:
        n_candidates = min(_N_CANDIDATES, len(points))
        distances, rows = nearest.topk(n_candidates)
        between = torch.cdist(points[rows], points[rows]).square() / 2
        picked = _pick_farthest(
            distances.cpu().numpy(),
            between.cpu().numpy(),
            n_centers - len(chosen),
            lowest,
        )
        if len(picked) == 0:
            break
        picked = rows.cpu().numpy()[picked].tolist()
        _bring_up_to_date(nearest, points, half_squares, picked)
        chosen += picked
    return np.sort(chosen)


def _pick_farthest(distances, between, n_wanted, lowest):
    """Pick candidates, the farthest first, while no other point can be farther.

    `distances`, in descending order, are those from the points chosen before; a point
    that is no candidate is at most as far as the last candidate was. All are half
    squares, and what is not above `lowest` counts as 0.
    """
    current, last = distances.copy(), distances[-1]
    picked = []
    while len(picked) < n_wanted:
        i = int(current.argmax())
        if current[i] <= lowest or (picked and current[i] < last):
            break
        picked.append(i)
        current = np.minimum(current, between[i])
        current[i] = 0
    return picked


def _bring_up_to_date(nearest, points, half_squares, picked):
    """Lower half the squared distances from chosen points, in place, by new ones."""
    columns = as_columns(points[picked])
    n_products = _CPU_PRODUCTS if points.device.type == "cpu" else _GPU_PRODUCTS
    size = max(n_products // len(picked), 1)
    chunks = zip(*(x.split(size) for x in (nearest, points, half_squares)), strict=True)
    for former, chunk, half in chunks:
        x = expand(half_squares[picked], chunk, columns).amin(dim=1)
        torch.minimum(former, (x + half).clamp_(min=0), out=former)
    nearest[picked] = 0
