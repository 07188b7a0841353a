"""In which way images differ from those of fit, though the model takes them."""

import numpy as np

# By how much height : width may differ from that of every training image.
_RATIO = 1.1


class Notes:
    """Notes on images that an estimator inspects, but was not made for."""

    def __init__(self, estimator):
        ratios = np.array([height / width for height, width in estimator._fitted.sizes])
        self._ratios = ratios.min(), ratios.max()
        self._n_channels = estimator.inspected_shape_[2]

    def find(self, shape):
        """Return what to know of an image of a shape in which it came, or ""."""
        height, width, n_channels = shape
        notes, (low, high) = [], self._ratios
        if not low / _RATIO <= height / width <= high * _RATIO:
            usual = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
            notes.append(
                f"distorted: height is {height / width:.2f} x width, and {usual} x in "
                "the training images"
            )
        if n_channels == 1 < self._n_channels:
            notes.append("grey, and the training images are in colour")
        return "; ".join(notes)
