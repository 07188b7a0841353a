"""How much normal patches vary, by what they look like."""

from typing import NamedTuple

import numpy as np
import torch

from skpatchsvdd._bank.exact import as_tensor
from skpatchsvdd._utils import Saved, as_columns, draw_seed, expand, halve_squares

# Normal patches whose distances are measured, about, and twice as many at most: with a
# quarter of them figures are a little worse, and comparing a patch with these takes a
# tenth of the time of an inspection on two ARM cores.
_N_PATCHES = 4096
# Width of the kernel, as a fraction of the squared distance from a measured patch to
# the nearest other one: a handful of them decide together.
_WIDTH = 1 / 16
# The kernel is no narrower than this fraction of the features' mean square: distances
# below are rounding errors of expanded squares.
_NARROWEST = 1e-4
# Products held at a time by plain operations, each of which takes time to begin.
_PLAIN_PRODUCTS = 2**24
# Products held at a time: on a CPU as many as stay in the cache of a core.
_CPU_PRODUCTS, _OTHER_PRODUCTS = 2**18, 2**27
# Exponents are no less than this beside the largest: what has them weighs nothing, and
# smaller results would be denormal, which take a CPU many times as long.
_LEAST = -60.0
# The quantile of the distances of normal patches that tells how large variation is
# where images are least alike, from where the highest pixels of most of them come.
_LARGE = 0.85
# Half a squared distance from which nothing weighs, in units of the kernel's width.
_FAR = 1e30


class PatchSample(NamedTuple):
    """Patches of every normal image, a few of each."""

    rows: np.ndarray  # (n_images, n_each, n_features), float32
    owners: np.ndarray  # (n_images,), who is left out with each
    images: np.ndarray  # (n_images,), their numbers

    def join(self, other, rng):
        """Return both samples as one, a random choice of the images if too many."""
        return _join_samples([self, other], rng)


class Sampler:
    """Draws the same number of patches from every image of a stream.

    From a random choice of the images if there are too many, so that memory does not
    grow with them. Without `n_each`, `_N_PATCHES` are shared among the images. `rng`
    draws the seed of all that is drawn here, so that it is the same in whatever batches
    images come, and on whatever device.
    """

    def __init__(self, n_images, rng, n_each=None):
        self._n_each = max(_N_PATCHES // n_images, 1) if n_each is None else n_each
        self._rng = rng = np.random.RandomState(draw_seed(rng))
        self._samples = []
        self._n_seen = 0
        n_drawn = max(2 * _N_PATCHES // self._n_each, 1)
        self._is_drawn = np.ones(n_images, dtype=bool)
        if n_images > n_drawn:
            others = rng.choice(n_images, n_images - n_drawn, replace=False)
            self._is_drawn[others] = False

    def add(self, features, owners, images):
        """Draw from the patches of images, a tensor (n, n_patches, n_features)."""
        drawn = self._is_drawn[self._n_seen : self._n_seen + len(features)]
        self._n_seen += len(features)
        if not drawn.any():
            return
        numbers, n_patches = np.flatnonzero(drawn), features.shape[1]
        n_each = min(self._n_each, n_patches)
        chosen = [self._rng.choice(n_patches, n_each, replace=False) for _ in numbers]
        places = torch.from_numpy(numbers[:, None] * n_patches + np.array(chosen))
        rows = features.flatten(0, 1)[places.to(features.device)].cpu().numpy()
        labels = (np.asarray(x)[drawn] for x in (owners, images))
        self._samples.append(PatchSample(rows, *labels))

    def result(self):
        """Return the `PatchSample`."""
        return _join_samples(self._samples, self._rng)


def _join_samples(samples, rng):
    joined = PatchSample(*(np.concatenate(x) for x in zip(*samples, strict=True)))
    n_images = max(2 * _N_PATCHES // joined.rows.shape[1], 1)
    if len(joined.rows) > n_images:
        chosen = np.sort(rng.choice(len(joined.rows), n_images, replace=False))
        joined = PatchSample(*(x[chosen] for x in joined))
    return joined


class Variation(Saved):
    """Local normal variation: how far a patch is from its like if it is normal.

    The distances of a sample of normal patches to the nearest row, in an index, of
    another owner are measured. For any other patch it is their mean, weighted by how
    much they look like it (Nadaraya and Watson's regression), and half-way to the
    median of all: edges, which never look the same twice, may lie farther away than an
    even ground.

    It depends on the patch alone and not on what is found for it, so that a distance
    that is too large stays too large in units of it.
    """

    _saved = ("sample", "distances", "width")

    def __init__(self, sample, index, device):
        self.sample = sample
        rows = torch.from_numpy(sample.rows).to(device)
        distances = index.query(rows, sample.owners.tolist())
        self.distances = distances.cpu().numpy()
        self.width = _find_width(rows.flatten(0, 1))
        vars(self).update(self._unsaved())

    def measure(self, features, left_out):
        """Return the variation at patches, plus that of all normal patches.

        Features are (n_images, n_patches, n_features), float32, on any device. For each
        image `left_out` has the owner whose patches tell nothing, or -1.
        """
        model = self._models.get(features.device)
        if model is None:
            model = self._models[features.device] = self._make_model(features.device)
        return regress_images(model, features, left_out) + model.typical

    @property
    def typical(self):
        """The median distance of normal patches.

        Of images that are mostly copies, what is above 0.
        """
        for typical in (np.median(self.distances), np.mean(self.distances)):
            if typical > 0:
                return float(typical)
        return 1.0

    @property
    def large(self):
        """The variation of normal patches that vary much: a distance, about."""
        return float(np.quantile(self.distances, _LARGE)) + self.typical

    def make_plain(self):
        """Return a function of patches (n, n_features) that gives what `measure` does.

        Of new patches, on a CPU, in few and plain operations that others can record.
        """
        model = self._make_model(torch.device("cpu"))
        return lambda x: regress(model, x, _PLAIN_PRODUCTS) + model.typical

    def _make_model(self, device):
        """Return a `KernelModel`."""
        rows = as_tensor(self.sample.rows).to(device).flatten(0, 1)
        origin = rows.mean(dim=0)
        rows = rows - origin
        owners = np.repeat(self.sample.owners, self.sample.rows.shape[1])
        return KernelModel(
            origin,
            as_columns(rows) / self.width,
            halve_squares(rows) / self.width,
            as_tensor(self.distances).to(device).flatten(),
            torch.from_numpy(owners.astype(np.int32)).to(device),
            self.typical,
        )

    def _unsaved(self):
        # By device, and never dropped: CUDA graphs read them.
        return {"_models": {}}


def _find_width(rows):
    """Return the kernel's variance: it follows how far apart the patches lie."""
    origin = rows.mean(dim=0)
    rows = rows - origin
    half_squares, columns = halve_squares(rows), as_columns(rows)
    nearest = []
    for i, chunk in enumerate(rows.split(512)):
        away = expand(half_squares, chunk, columns)
        row = torch.arange(len(chunk), device=rows.device)
        away[row, row + 512 * i] = torch.inf  # not itself
        nearest.append(away.amin(dim=1) + halve_squares(chunk))
    squares = 2 * torch.cat(nearest).clamp(min=0)
    squares = squares[torch.isfinite(squares)]
    width = _WIDTH * squares.median() if len(squares) else torch.tensor(0.0)
    width = max(float(width), _NARROWEST * float(half_squares.mean()))
    return width if width > 0 else 1.0


class KernelModel(NamedTuple):
    """What the regression needs, on a device, in units of the kernel's width."""

    origin: torch.Tensor  # (n_features,)
    columns: torch.Tensor  # (n_features, n_rows)
    half_squares: torch.Tensor  # (n_rows,)
    distances: torch.Tensor  # (n_rows,)
    owners: torch.Tensor  # (n_rows,)
    typical: float

    def leave_out(self, owner):
        """Return the model without an owner's rows, or as it is if there are no others.

        An owner of -1 has none.
        """
        if owner < 0 or (is_out := self.owners == owner).all():
            return self
        return self._replace(half_squares=self.half_squares.masked_fill(is_out, _FAR))


def regress_images(model, features, left_out):
    """Return the mean distances of the patches of images, (n_images, n_patches).

    Features are (n_images, n_patches, n_features). For each image `left_out` has the
    owner whose rows are left out, or -1.
    """
    if features.is_cuda and max(left_out) < 0:
        return regress(model, features.flatten(0, 1)).view(features.shape[:2])
    # Image by image, so that no other image matters.
    models = [model.leave_out(owner) for owner in left_out]
    return torch.stack([regress(*x) for x in zip(models, features, strict=True)])


def regress(model, features, n_products=None):
    """Return the mean of distances, weighted by the kernel, comparing with all rows.

    Features are (n, n_features). As many products are held at a time as suit the
    device, or `n_products`.
    """
    is_cpu = features.device.type == "cpu"
    products = n_products or (_CPU_PRODUCTS if is_cpu else _OTHER_PRODUCTS)
    means = []
    for chunk in features.split(max(products // len(model.distances), 1)):
        x = chunk - model.origin
        near = torch.addmm(model.half_squares, x, model.columns, beta=-1)
        if is_cpu:
            near.clamp_(min=near.amax(dim=1, keepdim=True) + _LEAST)
        means.append(torch.softmax(near, dim=1) @ model.distances)
    return torch.cat(means)
