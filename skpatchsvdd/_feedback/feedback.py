"""What people have said of images: how it changes distances, and what counts."""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from skpatchsvdd._calibration import count_abnormality
from skpatchsvdd._feedback.known_defects import KnownDefects, raise_distances
from skpatchsvdd._utils import Saved


@dataclass(frozen=True, kw_only=True, eq=False)
class Feedback(Saved):
    """Known defects and corrected false alarms, as an `Inspector` asks for them.

    Nothing here knows of thresholds. Distances are raised by known defects; what is
    raised counts up to a little more than a level. A corrected picture counts as normal
    whenever it comes again, and no other one does for its sake.

    Parameters
    ----------
    defects : KnownDefects or None
        Patches that are nearer to these count as if they were farther from normal ones.
    corrected : set of bytes
        Digests of images that raised a false alarm.
    levels : ndarray of shape (n_images + 1,)
        See `Calibration.levels`.
    """

    defects: KnownDefects | None = None
    corrected: set = field(default_factory=set)
    levels: np.ndarray | None = None

    def __bool__(self):
        return bool(self.defects or self.corrected)

    @property
    def defective(self):
        """Digests of the images of known defects, a set."""
        return set() if self.defects is None else set(self.defects.known)

    def measure(self, encoded, scales):
        """Return how far the patches of images are from known defects.

        Parameters
        ----------
        encoded : Encoded
            The images.
        scales : iterable of int
            The indices of scales.

        Returns
        -------
        near : dict of tensor of shape (n_images, rows, cols), or None
            By scale, times the limits; see `KnownDefects.measure`. None if no defects
            are known.
        """
        if self.defects is None:
            return None
        near = {}
        for i in scales:
            x = encoded.features[i]
            found = self.defects.measure(i, x.flatten(1, 2), encoded.owners)
            near[i] = found.view(x.shape[:3])
        return near

    # Distances, and how far patches are from known defects, in; raised distances out.
    # A larger distance stays larger, so that bounds stay bounds.
    apply = staticmethod(raise_distances)

    count = staticmethod(count_abnormality)

    def change(self, **changes):
        """Return one with other values of some parameters."""
        return replace(self, **changes)

    @classmethod
    def saved_names(cls):
        """Return the names of what is saved: all that it is made of."""
        return tuple(x.name for x in fields(cls))
