"""What people have said of images: how it changes distances, and what counts."""

from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch

from skpatchsvdd._calibration import count_abnormality
from skpatchsvdd._feedback.harmless import Harmless, lower_distances
from skpatchsvdd._feedback.known_defects import KnownDefects, raise_distances
from skpatchsvdd._utils import Saved


@dataclass(frozen=True, kw_only=True, eq=False)
class Feedback(Saved):
    """Known defects and corrected false alarms, as an `Inspector` asks for them.

    Nothing here knows of thresholds. Distances are lowered by what is harmless, and
    raised by known defects; what is raised counts up to a little more than a level.

    Parameters
    ----------
    defects : KnownDefects or None
        Patches that are nearer to these count as if they were farther from normal ones.
    harmless : Harmless or None
        Patches that are like these count as if they were nearer to normal ones.
    corrected : set of bytes
        Digests of images that raised a false alarm: those of the bank are inspected
        with their own patches in it.
    levels : ndarray of shape (n_images + 1,)
        See `Calibration.levels`.
    """

    defects: KnownDefects | None = None
    harmless: Harmless | None = None
    corrected: set = field(default_factory=set)
    levels: np.ndarray | None = None

    def __bool__(self):
        return bool(self.defects or self.harmless or self.corrected)

    @property
    def defective(self):
        """Digests of the images of known defects, a set."""
        return set() if self.defects is None else set(self.defects.known)

    @property
    def sees_colors(self):
        """Whether it looks at colours of patches."""
        return self.harmless is not None

    def find_far(self, scale, distances):
        """Return which distances must be exact for `measure`, not mere bounds."""
        if self.harmless is None:
            return torch.zeros_like(distances, dtype=torch.bool)
        return self.harmless.find_far(scale, distances)

    def measure(self, encoded, distances, inside):
        """Return how far the patches of images are from what people have named.

        Parameters
        ----------
        encoded : Encoded
            The images. Without their colours nothing is harmless.
        distances : dict of tensor of shape (n_images, rows, cols)
            By scale, those to the nearest normal patches.
        inside : list of tensor of bool of shape (rows, cols)
            Which patches are looked at.

        Returns
        -------
        near : dict of tensor of shape (2, n_images, rows, cols)
            By scale: from what is harmless, in units of how far they may be, and from
            known defects; infinite where nothing is known.
        """
        near = {i: x.new_full((2, *x.shape), torch.inf) for i, x in distances.items()}
        features = {i: encoded.features[i] for i in distances}
        if self.harmless is not None and encoded.colors is not None:
            far = {i: torch.where(inside[i], x, 0.0) for i, x in distances.items()}
            colors = {i: encoded.colors[i] for i in distances}
            for i, found in self.harmless.measure(features, colors, far).items():
                near[i][0] = found
                for own, digest in zip(near[i][0], encoded.digests, strict=True):
                    if digest is not None:  # the same picture again
                        own.view(-1)[self.harmless.list_cells(i, digest)] = 0.0
        if self.defects is not None:
            for i, x in features.items():
                found = self.defects.measure(i, x.flatten(1, 2), encoded.owners)
                near[i][1] = found.view(distances[i].shape)
        return near

    def apply(self, scale, distances, near):
        """Return distances as they are lowered and, if defects are known, raised.

        What is like a known defect, and like something harmless, is what is nearer.
        A larger distance stays as large at least, so that bounds stay bounds.
        """
        harmless, defects = near
        lowered = distances
        if self.harmless is not None:
            typical = self.harmless.typical[scale]
            lowered = lower_distances(distances, harmless, typical)
            lowered = torch.where(harmless * distances < defects, lowered, distances)
        if self.defects is None:
            return (lowered,)
        raised = raise_distances(distances, defects)
        return lowered, torch.where(lowered < distances, lowered, raised)

    count = staticmethod(count_abnormality)

    def change(self, **changes):
        """Return one with other values of some parameters."""
        return replace(self, **changes)

    @classmethod
    def saved_names(cls):
        """Return the names of what is saved: all that it is made of."""
        return tuple(x.name for x in fields(cls))
