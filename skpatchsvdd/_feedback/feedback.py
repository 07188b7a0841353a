"""What people have said of images: how it changes distances, and what counts."""

from dataclasses import dataclass, field

import numpy as np

from skpatchsvdd._calibration import count_abnormality
from skpatchsvdd._feedback.known_defects import KnownDefects, raise_distances
from skpatchsvdd._utils import Saved


@dataclass(frozen=True, kw_only=True, eq=False)
class Feedback(Saved):
    """Known defects and corrected false alarms, as inspection asks for them.

    Nothing here knows of thresholds. Distances are raised by known defects; what is
    raised counts up to a little more than a level. A corrected picture counts as normal
    whenever it comes again, and no other one does for its sake.
    """

    # Patches that are nearer to these count as if they were farther from normal ones.
    defects: KnownDefects | None = None
    corrected: set = field(default_factory=set)  # digests of images of false alarms
    levels: np.ndarray | None = None  # see `Calibration.levels`

    def __bool__(self):
        return bool(self.defects or self.corrected)

    @property
    def kinds(self):
        """The kinds of known defects, by the digests of their images, a dict."""
        if self.defects is None:
            return {}
        return dict(zip(self.defects.known, self.defects.kinds, strict=True))

    def measure(self, encoded, scales):
        """Return how far the patches of images are from known defects, by scale.

        Times the limits, (n_images, rows, cols); see `KnownDefects.measure`. None if no
        defects are known.
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
    apply = staticmethod(raise_distances)

    count = staticmethod(count_abnormality)
