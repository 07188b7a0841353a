"""Whole images in, anomaly maps out: encode, search, spread, join."""

import copy

import numpy as np
import torch

from skpatchsvdd._device import exact_convolutions
from skpatchsvdd._encoder import grid_shape
from skpatchsvdd._images import image_digest
from skpatchsvdd._light import damp_light
from skpatchsvdd._maps import join_maps, spread_scores
from skpatchsvdd._places import add_places, find_unit

# Patches inspected together. On a CPU one image of usual size is enough work.
_CPU_PATCHES = 2048
_GPU_PATCHES = 2**15


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
        """Encode images, float32 arrays of shape (n, height, width, n_channels).

        Returns
        -------
        features : list of tensors of shape (n, rows, cols, D)
            One for each scale.
        """
        x = torch.tensor(images, device=self.device) - self._center
        x = x.permute(0, 3, 1, 2)  # (n, c, h, w)
        # A CPU's convolution rounds differently for other batch sizes: image by image,
        # a score depends on that image alone, and takes no longer.
        parts = x.split(1) if self.device.type == "cpu" else [x]
        with torch.inference_mode(), exact_convolutions():
            maps = [self._encode_maps(part) for part in parts]
        scales = zip(*maps, strict=True)
        return [torch.cat(scale).permute(0, 2, 3, 1) for scale in scales]

    def _encode_maps(self, images):
        images = damp_light(images, self.light)
        return self._encoder.encode_images(images, self.strides)

    def add_places(self, features, units):
        """Append row and column to the features of each scale, in these units."""
        return [
            add_places(x, stride, self.image_size, unit)
            for x, stride, unit in zip(features, self.strides, units, strict=True)
        ]

    def encode_bank(self, images, place_weight, rng):
        """Encode all patches of a stack of images, image after image.

        Parameters
        ----------
        images : ImageStack
            Normal images.
        place_weight : "auto" or float
            How much the place of a patch counts; see `find_unit`.
        rng : RandomState
            Draws the patches by which that is decided.

        Returns
        -------
        banks : list of ndarrays of shape (n_images * rows * cols, D or D + 2)
            One for each scale.
        units : list of float
            What to append places to features with; see `add_places`.
        """
        maps = self._encode_all(images)
        units = [
            find_unit(x, stride, place_weight, self.device, rng)
            for x, stride in zip(maps, self.strides, strict=True)
        ]
        maps = self.add_places([torch.from_numpy(x) for x in maps], units)
        return [x.flatten(0, 2).numpy() for x in maps], units

    def _encode_all(self, images):
        """Return the features of all images, (n_images, rows, cols, D), by scale."""
        maps = None
        for start, batch in images.batches(self.batch_size):
            features = [x.cpu().numpy() for x in self.encode(batch)]
            if maps is None:
                shapes = [(len(images), *x.shape[1:]) for x in features]
                maps = [np.empty(shape, dtype=np.float32) for shape in shapes]
            for stored, x in zip(maps, features, strict=True):
                stored[start : start + len(x)] = x
        return maps


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
        distance zero, and without its own share in a centre that is their mean.
    aggregation : {"multiply", "sum"}
        How to join the scales' maps.
    units : list of float
        How places were appended to the features of the bank, by scale.
    """

    def __init__(self, encoder, indexes, known, aggregation, units):
        self.encoder = encoder
        self.indexes = indexes
        self.units = units
        self.aggregation = aggregation
        self._gain = _leave_out_gain(len(known), encoder.center)
        self._places = {digest: i for i, digest in enumerate(known)}

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
        sizes = self.encoder.patch_sizes
        chosen = range(len(sizes)) if scale is None else [sizes.index(scale)]
        for _, batch in images.batches(self.encoder.batch_size):
            places = [self._places.get(image_digest(image), -1) for image in batch]
            features = self.encoder.encode(self._leave_out_of_mean(batch, places))
            features = self.encoder.add_places(features, self.units)
            maps = [self._scale_map(i, features[i], places) for i in chosen]
            yield join_maps(maps, self.aggregation).cpu().numpy()

    def _leave_out_of_mean(self, batch, places):
        """Change known images so that the mean of the others is subtracted from them.

        With the mean m of n images, x less the mean of the others is
        (x - m) * n / (n - 1).
        """
        is_known = np.array(places) >= 0
        if self._gain == 1 or not is_known.any():
            return batch
        gain = np.where(is_known, self._gain, 1)
        gain = gain.astype(np.float32)[:, None, None, None]
        mean = self.encoder.center
        return np.where(gain == 1, batch, mean + (batch - mean) * gain)

    def _scale_map(self, i, features, places):
        n, rows, cols, _ = features.shape
        skip = _rows_of_images(places, rows * cols)
        scores = self.indexes[i].query(features.flatten(1, 2), skip)
        return spread_scores(
            scores.reshape(n, rows, cols),
            self.encoder.patch_sizes[i],
            self.encoder.strides[i],
            self.encoder.image_size,
        )


def _leave_out_gain(n_known, center):
    """Return n / (n - 1) where the centre is the mean of n images."""
    # A centre that is one number is nobody's mean.
    return n_known / (n_known - 1) if center.size > 1 and n_known > 1 else 1


def _rows_of_images(places, n_patches):
    """For each image, the rows of the bank that are its own, (n, 2)."""
    if max(places) < 0:
        return None
    start = torch.tensor([[place * n_patches] for place in places])  # (n, 1)
    stop = start + n_patches * (start >= 0)
    return torch.cat([start, stop], dim=1)
