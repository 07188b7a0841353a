"""Synthetic defects and changes of light to choose models by, unlike training's."""

import numpy as np

from skpatchsvdd._synthetic.defects import DEFECTS, add_defect

# Parts of an image, relative to its shorter side, that a defect is drawn into: the
# smaller the part, the smaller the defect. No part is smaller than so many pixels.
_PARTS = (1.0, 0.5, 0.25)
_SMALLEST_PART = 48
# Changes of light that must not matter: brightness, contrast, and a slope of brightness
# from one side to the other, at most.
_BRIGHTNESS, _CONTRAST, _SLOPE = 0.03, 0.05, 0.03


def make_probes(images, n_damaged, rng):
    """Make copies of normal images: as they are, in another light, with a defect.

    Parameters
    ----------
    images : ndarray of shape (n, height, width, n_channels)
        On the 0..1 scale, or on a wider one, which is then taken for it.
    n_damaged : int
        How many copies of each image get a defect.
    rng : RandomState
        Draws light and defects.

    Returns
    -------
    copies : ndarray of shape ((2 + n_damaged) * n, height, width, n_channels)
        float32.
    labels : ndarray of shape ((2 + n_damaged) * n,)
        1 for normal copies, relit ones among them, -1 for damaged ones.
    """
    low, high = min(images.min(), 0), max(images.max(), 1)
    images = (images - low) / (high - low)
    kinds = list(DEFECTS)
    start = rng.randint(len(kinds))
    damaged = [
        damage(image, kinds[(start + i) % len(kinds)], rng)
        for i, image in enumerate(np.concatenate([images] * n_damaged))
    ]
    relit = [change_light(image, rng) for image in images]
    copies = low + (high - low) * np.stack([*images, *relit, *damaged])
    labels = np.repeat([1, -1], [2 * len(images), len(damaged)])
    return copies.astype(np.float32), labels


def damage(image, kind, rng):
    """Put a defect of any size on an image (height, width, n_channels)."""
    size = min(image.shape[:2])
    size = min(max(int(size * rng.choice(_PARTS)), _SMALLEST_PART), size)
    top, left = (rng.randint(length - size + 1) for length in image.shape[:2])
    window = (slice(top, top + size), slice(left, left + size))
    everywhere = np.ones((size, size), dtype=bool)
    damaged = image.copy()
    damaged[window] = add_defect(rng, image[window], everywhere, kind).clip(0, 1)
    return damaged


def change_light(image, rng):
    """Change brightness and contrast a little, and more on one side than the other."""
    brightness, contrast = rng.uniform(-1, 1, 2) * (_BRIGHTNESS, _CONTRAST)
    slopes = rng.uniform(-_SLOPE, _SLOPE, 2)
    down, right = (
        slope * np.linspace(-1, 1, length)
        for slope, length in zip(slopes, image.shape[:2], strict=True)
    )
    light = brightness + down[:, None] + right
    mean = image.mean()
    return (mean + (1 + contrast) * (image - mean) + light[:, :, None]).clip(0, 1)
