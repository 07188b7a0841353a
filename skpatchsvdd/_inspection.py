"""Whole images in, anomaly maps out: encode, search, spread, join."""

import copy
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F

from skpatchsvdd._device import exact_convolutions, halve_without_memory
from skpatchsvdd._encoder import grid_shape
from skpatchsvdd._images import KnownImages, pixels_to_float
from skpatchsvdd._light import REACH, damp_light, damp_windows
from skpatchsvdd._maps import find_covering, join_maps, spread_scores
from skpatchsvdd._places import add_places

# Patches inspected together. On a CPU one image of usual size is enough work.
_CPU_PATCHES = 2048
_GPU_PATCHES = 2**17
# Images of more pixels are encoded in tiles, of patches that begin within this many
# pixels along each axis, about.
_WHOLE_PIXELS = 2**20
_TILE = 512
# Pixels, the largest ones, whose patches are decided together.
_N_SETTLED = 256


class DenseEncoder:
    """An encoder on its device, run over whole images.

    Parameters
    ----------
    encoder : PatchEncoder
        Left as it is; a copy works on the device.
    image_size : tuple of (height, width)
        Size of the images.
    center : ndarray of shape (height, width, n_channels) or (1, 1, 1)
        Subtracted from every image.
    light : float
        Share of slow changes of brightness that stays.
    strides : tuple of int
        One for each of the encoder's patch sizes.
    device : torch.device
        Where to compute.
    """

    def __init__(self, encoder, image_size, center, light, strides, device):
        self.patch_sizes = encoder.patch_sizes
        self.strides = strides
        self.center = center
        self.light = light
        self.image_size = image_size
        self.device = device
        self.grids = [
            grid_shape(self.image_size, size, stride)
            for size, stride in zip(self.patch_sizes, strides, strict=True)
        ]
        self._encoder = copy.deepcopy(encoder).to(device).requires_grad_(False)
        self._center = torch.tensor(center, device=device)

    @property
    def batch_size(self):
        """How many images to inspect together."""
        n_patches = _CPU_PATCHES if self.device.type == "cpu" else _GPU_PATCHES
        return max(1, n_patches // max(rows * cols for rows, cols in self.grids))

    def encode(self, images):
        """Encode an array of images, (n, height, width, n_channels), bytes or 0..1.

        Returns
        -------
        features : list of tensors of shape (n, rows, cols, D)
            One for each scale.
        """
        x = pixels_to_float(torch.tensor(images, device=self.device)) - self._center
        x = x.permute(0, 3, 1, 2)  # (n, c, h, w)
        # A CPU's convolution rounds differently for other batch sizes: image by image,
        # a score depends on that image alone, and takes no longer.
        size = 1 if self.device.type == "cpu" else len(x)
        with torch.inference_mode(), exact_convolutions():
            maps = halve_without_memory(
                lambda n: [self._encode_maps(part) for part in x.split(n)], size
            )
        scales = zip(*maps, strict=True)
        return [torch.cat(scale).permute(0, 2, 3, 1) for scale in scales]

    def _encode_maps(self, images):
        """Features of whole images by scale, (n, D, rows, cols)."""
        if math.prod(self.image_size) <= _WHOLE_PIXELS:
            images = damp_light(images, self.light)
            return self._encoder.encode_images(images, self.strides)
        padded = F.pad(images, (REACH,) * 4)
        bands = [
            [self._encode_tile(padded, rows, cols) for cols in self._tiles(1)]
            for rows in self._tiles(0)
        ]
        # Tile beside tile, then band below band, for each scale.
        bands = [[torch.cat(x, dim=3) for x in zip(*b, strict=True)] for b in bands]
        return [torch.cat(x, dim=2) for x in zip(*bands, strict=True)]

    def _tiles(self, axis):
        """Cut an axis into tiles: where their patches begin, from and up to."""
        step = math.lcm(*self.strides)
        step *= max(_TILE // step, 1)
        length = self.image_size[axis]
        # The largest patch must fit into the last tile.
        starts = range(0, length - self.patch_sizes[-1] + 1, step)
        return list(itertools.pairwise([*starts, length]))

    def _encode_tile(self, padded, rows, cols):
        """Features of the patches that begin within some rows and columns."""
        spans = [
            (start, min(stop + self.patch_sizes[-1] - 1, length))
            for (start, stop), length in zip((rows, cols), self.image_size, strict=True)
        ]
        (top, bottom), (left, right) = spans
        window = padded[
            :, :, top : bottom + 2 * REACH, left : right + 2 * REACH
        ]  # REACH more on every side
        corner = torch.tensor([[top, left]], device=padded.device)
        corner = corner.expand(len(padded), -1)
        window = damp_windows(window, corner, self.image_size, self.light)
        features = self._encoder.encode_images(window, self.strides)
        parts = []
        for x, stride, grid in zip(features, self.strides, self.grids, strict=True):
            n_rows, n_cols = (
                min(-(-stop // stride), n) - start // stride
                for (start, stop), n in zip((rows, cols), grid, strict=True)
            )
            parts.append(x[:, :, :n_rows, :n_cols])
        return parts

    def add_places(self, features, units):
        """Append row and column to the features of each scale, in these units."""
        return [
            add_places(x, stride, self.image_size, unit)
            for x, stride, unit in zip(features, self.strides, units, strict=True)
        ]

    def encode_stack(self, images):
        """Encode a stack of images, batch by batch; by scale, (n, rows, cols, D)."""
        batches = [self.encode(x) for _, x in images.batches(self.batch_size)]
        return [torch.cat(scale) for scale in zip(*batches, strict=True)]


class Inspector:
    """Makes anomaly maps from an encoder and the indexes of normal features.

    Parameters
    ----------
    encoder : DenseEncoder
        Encodes the images.
    indexes : list of indexes
        One for each scale.
    known : list of bytes
        Digests of the images in the bank. Such an image is inspected as if it had not
        been there: without its own patches, among which it would find itself at
        distance zero, and without its own share in a centre that is a mean.
    n_averaged : int
        How many of the known images, the first ones, that mean is of.
    aggregation : {"multiply", "sum"}
        How to join the scales' maps.
    units : list of float
        How places were appended to the features of the bank, by scale.
    tolerance : float
        Share by which a score may be too large where an index is approximate.
    owners : ndarray of int of shape (n_known,) or None
        Whose patches in the bank are left out for each known image: those of all images
        of its group. None leaves out its own.
    """

    def __init__(
        self,
        encoder,
        indexes,
        known,
        n_averaged,
        aggregation,
        units,
        tolerance=0.0,
        owners=None,
    ):
        self.encoder = encoder
        self.indexes = indexes
        self.units = units
        self.aggregation = aggregation
        self.tolerance = tolerance
        # A centre that is one number is nobody's mean.
        self.n_averaged = n_averaged if encoder.center.size > 1 else 0
        self._known = KnownImages(known)
        self._owners = owners

    def extend(self, indexes, known, owners=None):
        """Return an inspector that knows more."""
        other = copy.copy(self)
        other.indexes = indexes
        other._known = KnownImages(known)
        other._owners = owners
        return other

    def maps(self, images, scale=None):
        """Yield the anomaly maps of a stack of images, batch by batch.

        Parameters
        ----------
        images : ImageStack
            The images.
        scale : int or None
            One patch size, for the map of that scale alone.

        Yields
        ------
        maps : ndarray of shape (n_batch, height, width)
        """
        for maps in self._inspect(images, scale):
            yield maps.cpu().numpy()

    def scores(self, images, progress=None):
        """Return minus the maximum of each image's map: high is normal, (n,).

        ``progress(n)`` is told how many images are done.
        """
        scores, n_done = [], 0
        for maps in self._inspect(images):
            scores.append(-maps.amax(dim=(1, 2)))
            n_done += len(maps)
            if progress is not None:
                progress(n_done)
        return torch.cat(scores).double().cpu().numpy()

    def _inspect(self, images, scale=None):
        sizes = self.encoder.patch_sizes
        chosen = range(len(sizes)) if scale is None else [sizes.index(scale)]
        for _, batch in images.batches(self.encoder.batch_size):
            places = [self._known.find(image) for image in batch]
            features = self.encoder.encode(self._leave_out_of_mean(batch, places))
            features = self.encoder.add_places(features, self.units)
            yield self._join(self._search(features, self._own(places), chosen))

    def _own(self, places):
        """Return the owners that known images at some places have in the bank."""
        if self._owners is None:
            return places
        return [place if place < 0 else int(self._owners[place]) for place in places]

    def _search(self, features, places, chosen):
        """Return the distances of all patches, {scale: (n, rows, cols)}."""
        distances = {}
        for i in chosen:
            found = self.indexes[i].query(features[i].flatten(1, 2), places)
            distances[i] = found.view(features[i].shape[:3])
        if any(self.indexes[i].gives_bounds for i in chosen):
            for k, place in enumerate(places):
                self._settle(
                    {i: features[i][k] for i in chosen},
                    {i: distances[i][k] for i in chosen},
                    place,
                )
        return distances

    def _settle(self, features, bounds, place):
        """Lower the bounds of one image, in place, until its score is certain.

        From the top down: the patches that cover the largest pixels are decided
        exactly, until a pixel all of whose patches are decided is, up to the
        tolerance, the largest.
        """
        is_open = {
            i: torch.full_like(x, self.indexes[i].gives_bounds, dtype=torch.bool)
            for i, x in bounds.items()
        }
        while True:
            joined = self._join({i: x[None] for i, x in bounds.items()})[0]
            pixels = [self._spread(i, x[None].float())[0] for i, x in is_open.items()]
            open_pixels = torch.stack(pixels).sum(dim=0) > 0
            settled = joined.masked_fill(open_pixels, 0).max()
            joined.masked_fill_(~open_pixels, 0)
            limit = (1 + self.tolerance) * settled
            largest, where = joined.flatten().topk(min(_N_SETTLED, joined.numel()))
            where = where[largest > limit]
            if len(where) == 0:
                return
            chosen = torch.zeros_like(open_pixels)
            chosen.view(-1)[where] = True
            for i, x in bounds.items():
                new = self._covering(i, chosen) & is_open[i]
                if new.any():
                    x[new] = self.indexes[i].decide(features[i][new], place)
                    is_open[i] &= ~new

    def _join(self, distances):
        maps = [self._spread(i, x) for i, x in distances.items()]
        return join_maps(maps, self.aggregation)

    def _spread(self, i, scores):
        size, stride = self.encoder.patch_sizes[i], self.encoder.strides[i]
        return spread_scores(scores, size, stride, self.encoder.image_size)

    def _covering(self, i, pixels):
        size, stride = self.encoder.patch_sizes[i], self.encoder.strides[i]
        return find_covering(pixels, size, stride)

    def _leave_out_of_mean(self, batch, places):
        """Change known images so that the mean of the others is subtracted from them.

        With the mean m of n images, x less the mean of the others is
        (x - m) * n / (n - 1).
        """
        n = self.n_averaged
        has_share = (np.array(places) >= 0) & (np.array(places) < n)
        if n < 2 or not has_share.any():
            return batch
        gain = np.where(has_share, n / (n - 1), 1)
        gain = gain.astype(np.float32)[:, None, None, None]
        batch, mean = pixels_to_float(batch), self.encoder.center
        return np.where(gain == 1, batch, mean + (batch - mean) * gain)
