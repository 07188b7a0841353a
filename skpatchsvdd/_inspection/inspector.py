"""Images in, anomaly maps out: encode, search, spread, join."""

import numpy as np
import torch

from skpatchsvdd._images import KnownImages, pixels_to_float
from skpatchsvdd._inspection.maps import find_covering, join_maps, spread_scores

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
    tolerance : float
        Fraction by which a score may be too large where an index is approximate.
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
        tolerance=0.0,
    ):
        self.encoder = encoder
        self.indexes = indexes
        self.units = units
        self.aggregation = aggregation
        self.tolerance = tolerance
        # A constant centre is not a mean of images: there is nothing to leave out.
        self.n_averaged = n_averaged if encoder.center.size > 1 else 0
        self._known = KnownImages(known)
        self._owners = owners

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
            known = [self._known.find(image) for image in batch]
            features = self.encoder.encode(self._leave_out_of_mean(batch, known))
            features = self.encoder.add_positions(features, self.units)
            yield self._join(self._search(features, self._own(known), chosen))

    def _own(self, known):
        """Return the owners, in the bank, of known images; -1 for the others."""
        if self._owners is None:
            return known
        return [i if i < 0 else int(self._owners[i]) for i in known]

    def _search(self, features, owners, chosen):
        """Return the distances of all patches, {scale: (n, rows, cols)}."""
        distances = {}
        for i in chosen:
            found = self.indexes[i].query(features[i].flatten(1, 2), owners)
            distances[i] = found.view(features[i].shape[:3])
        if any(self.indexes[i].gives_bounds for i in chosen):
            for k, owner in enumerate(owners):
                self._settle(
                    {i: features[i][k] for i in chosen},
                    {i: distances[i][k] for i in chosen},
                    owner,
                )
        return distances

    def _settle(self, features, bounds, owner):
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
                    x[new] = self.indexes[i].decide(features[i][new], owner)
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
