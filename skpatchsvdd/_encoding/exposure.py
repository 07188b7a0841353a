"""How light an image is as a whole, kept within what training images have shown."""

import torch

from skpatchsvdd._images import pixels_to_float

# Every so many rows and columns a pixel is looked at: enough of them for a median.
_STEP = 4
# Half a grey level of 255: rounding does not take an image out of the range.
_MARGIN = 0.5 / 255


def measure_exposure(images):
    """Return the median brightness of images (n, height, width, n_channels), (n,).

    The median, since no defect that covers less than half of an image moves it much.
    """
    grey = images[:, ::_STEP, ::_STEP].mean(dim=3)
    return grey.flatten(1).median(dim=1).values


def find_exposures(images, former=None):
    """Find how dark and how light the images of a stack are.

    Parameters
    ----------
    images : ImageStack
        Normal images.
    former : tuple of (float, float) or None
        The range of other images, which is widened.

    Returns
    -------
    exposures : tuple of (float, float)
        The lowest and the highest median brightness, on the 0..1 scale.
    """
    found = [] if former is None else list(former)
    for _, batch in images.batches(16):
        found += measure_exposure(pixels_to_float(torch.from_numpy(batch))).tolist()
    return min(found), max(found)


def match_exposure(images, exposures):
    """Make images that are darker or lighter than a range as light as its end.

    Parameters
    ----------
    images : tensor of shape (n, height, width, n_channels)
        On the 0..1 scale.
    exposures : tuple of (float, float)
        See `find_exposures`. Images within the range stay as they are.

    Returns
    -------
    matched : tensor of shape (n, height, width, n_channels)
    """
    own = measure_exposure(images)
    low, high = exposures
    shift = own.clamp(low - _MARGIN, high + _MARGIN) - own
    return images + shift[:, None, None, None]
