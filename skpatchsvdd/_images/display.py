"""Images as bytes to look at."""

import os

import numpy as np

from skpatchsvdd._images.files import read_image
from skpatchsvdd._images.forms import as_array


def read_display(image):
    """Return an image, an array or a file, as bytes to look at, (height, width, 3)."""
    if isinstance(image, str | os.PathLike):
        image = read_image(image)
    image = as_array(image, "the image")
    if image.dtype != np.uint8:
        top = 65535 if image.dtype.kind == "u" else 1
        image = (np.clip(image / top, 0, 1) * 255).astype(np.uint8)
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] not in (1, 3):  # the first of more channels, or of two
        image = image[:, :, :3] if image.shape[2] > 3 else image[:, :, :1]
    return np.broadcast_to(image, (*image.shape[:2], 3))
