"""Images as bytes to look at."""

import numpy as np

from skpatchsvdd._images.arrays import as_array
from skpatchsvdd._images.files import read_image, read_small
from skpatchsvdd._images.stack import is_path


def read_display(image, size=None):
    """Return an image, or that of a path, as bytes to look at: (height, width, 3).

    If its longest side is more than `size` it is made smaller, and a file decoded at a
    part of its size where the format can. None keeps all pixels.
    """
    if is_path(image):
        image = read_image(image) if size is None else read_small(image, size)
    image = as_array(image, "the image")
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] not in (1, 3):  # the first of more channels, or of two
        image = image[:, :, :3] if image.shape[2] > 3 else image[:, :, :1]
    if image.dtype != np.uint8:
        top = np.float32(65535 if image.dtype.kind == "u" else 1)
        image = (np.clip(image / top, 0, 1) * 255).astype(np.uint8)
    if size is not None and max(image.shape[:2]) > size:
        image = _shrink(image, size)
    return np.broadcast_to(image, (*image.shape[:2], 3))


def _shrink(image, size):
    from PIL import Image

    pixels = image[:, :, 0] if image.shape[2] == 1 else image
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((size, size))
    return np.asarray(picture).reshape(picture.height, picture.width, -1)
