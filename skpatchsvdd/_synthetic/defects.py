"""Defects for pictures of normal surfaces, and what models are chosen by."""

import numpy as np
from scipy import ndimage

# Smallest change of a pixel, on the 0..1 scale, that is visible: about eight grey
# levels of 255. Masks reach to the soft edges of defects.
VISIBLE = 0.03
# Parts of an image, relative to its shorter side, that a defect is drawn into: the
# smaller the part, the smaller the defect. No part is smaller than so many pixels.
_PARTS = (1.0, 0.5, 0.25)
_SMALLEST_PART = 48
# Changes of light that must not matter: brightness, contrast, and a slope of brightness
# from one side to the other, at most.
_BRIGHTNESS, _CONTRAST, _SLOPE = 0.03, 0.05, 0.03


def make_probes(images, n_damaged, rng):
    """Make copies of normal images: as they are, in another light, with a defect.

    The defects are unlike those of training. Images (n, height, width, n_channels) are
    on the 0..1 scale, or on a wider one, which is then taken for it; `n_damaged` copies
    of each get a defect. Returns float32 copies, and labels: 1 for normal ones, relit
    ones among them, -1 for damaged ones.
    """
    low, high = min(images.min(), 0), max(images.max(), 1)
    images = (images - low) / (high - low)
    kinds = list(DEFECTS)
    start = rng.randint(len(kinds))
    damaged = [
        _damage(image, kinds[(start + i) % len(kinds)], rng)
        for i, image in enumerate(np.concatenate([images] * n_damaged))
    ]
    relit = [_change_light(image, rng) for image in images]
    copies = low + (high - low) * np.stack([*images, *relit, *damaged])
    labels = np.repeat([1, -1], [2 * len(images), len(damaged)])
    return copies.astype(np.float32), labels


def _damage(image, kind, rng):
    """Put a defect of any size on an image (height, width, n_channels)."""
    size = min(image.shape[:2])
    size = min(max(int(size * rng.choice(_PARTS)), _SMALLEST_PART), size)
    top, left = (rng.randint(length - size + 1) for length in image.shape[:2])
    window = (slice(top, top + size), slice(left, left + size))
    everywhere = np.ones((size, size), dtype=bool)
    damaged = image.copy()
    damaged[window] = add_defect(rng, image[window], everywhere, kind).clip(0, 1)
    return damaged


def _change_light(image, rng):
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


def add_defect(rng, image, where, name):
    """Put one of `DEFECTS` on an image (height, width, n_channels) of scale 0..1.

    It is centred on one of the pixels `where` (height, width), and drawn until it can
    be seen: one that cannot would be a wrong label.
    """
    centers = np.argwhere(ndimage.binary_erosion(where, iterations=len(image) // 16))
    if len(centers) == 0:
        centers = np.argwhere(where)
    for _ in range(20):
        damaged = DEFECTS[name](rng, image, centers[rng.randint(len(centers))])
        if (np.abs(damaged - image).max(axis=2) > 3 * VISIBLE).sum() > 12:
            break
    return damaged


def _scratch(rng, image, center):
    """Add a thin, slightly curved line, lighter or darker than the ground."""
    height, width = image.shape[:2]
    size = min(height, width)
    length = rng.uniform(0.22, 0.45) * size
    t = np.linspace(-0.5, 0.5, int(4 * length))
    angle = rng.uniform(0, np.pi) + rng.uniform(-1.2, 1.2) * t
    path = np.cumsum(np.stack([np.sin(angle), np.cos(angle)]), axis=1) / 4
    path = path - path.mean(axis=1, keepdims=True) + center[:, None]
    rows, cols = path.round().astype(int)
    inside = (rows >= 0) & (rows < height) & (cols >= 0) & (cols < width)
    line = np.zeros((height, width))
    line[rows[inside], cols[inside]] = 1
    far = ndimage.distance_transform_edt(line == 0)
    thickness = rng.uniform(0.8, 1.5)
    core = np.exp(-((far / thickness) ** 2))
    target = rng.choice([0.05, 0.95])
    return _blend(image, 0.8 * core, target)


def _stain(rng, image, center):
    """Tint a blob with an irregular outline."""
    blob = _blob(rng, image, center, rng.uniform(0.07, 0.13))
    tints = [(0.35, 0.30, 0.22), (0.55, 0.62, 0.75), (0.75, 0.45, 0.40)]
    tint = np.array(tints[rng.randint(len(tints))])
    tint = tint if image.shape[2] == 3 else tint.mean()
    return _blend(image, blob, image * tint + 0.03)


def _hole(rng, image, center):
    """Punch a small dark hole with a bright, raised rim."""
    blob = _blob(rng, image, center, rng.uniform(0.035, 0.06))
    rim = ndimage.gaussian_filter(blob, 1.2) - blob
    image = image + 0.9 * np.clip(rim, 0, None)[:, :, None]
    return _blend(image, blob, 0.04)


def _distortion(rng, image, center):
    """Swirl the surface around its centre."""
    down, right = pixel_axes(image.shape[:2], center)
    reach = rng.uniform(0.12, 0.18) * min(image.shape[:2])
    turn = rng.choice([-1, 1]) * rng.uniform(1.6, 2.4)
    turn = turn * np.clip(1 - np.hypot(down, right) / reach, 0, 1) ** 1.5
    rows = center[0] + np.cos(turn) * down - np.sin(turn) * right
    cols = center[1] + np.sin(turn) * down + np.cos(turn) * right
    channels = [
        ndimage.map_coordinates(image[:, :, i], [rows, cols], order=1, mode="reflect")
        for i in range(image.shape[2])
    ]
    return np.stack(channels, axis=2)


def _worn(rng, image, center):
    """Rub the relief of a surface away."""
    blob = _blob(rng, image, center, rng.uniform(0.09, 0.14))
    return _blend(image, blob, ndimage.gaussian_filter(image, (3, 3, 0)))


def _piece(rng, image, center):
    """Paste a piece of the image from elsewhere, turned or mirrored."""
    other = image[::-1] if rng.randint(2) else image[:, ::-1]
    shift = rng.randint(np.array(image.shape[:2]) // 2 + 1)
    other = np.roll(other, shift, axis=(0, 1))
    blob = _blob(rng, image, center, rng.uniform(0.05, 0.12))
    return _blend(image, blob, other)


def _gap(rng, image, center):
    """Fill a blob with the colour of what surrounds it, as if a part was missing."""
    blob = _blob(rng, image, center, rng.uniform(0.06, 0.12))
    around = ndimage.binary_dilation(blob > 0, iterations=2) & (blob == 0)
    colour = np.median(image[around], axis=0) if around.any() else 0.5
    return _blend(image, blob, colour)


DEFECTS = {
    "scratch": _scratch,
    "stain": _stain,
    "hole": _hole,
    "distortion": _distortion,
    "worn": _worn,
    "piece": _piece,
    "gap": _gap,
}


def pixel_axes(shape, center=(0, 0)):
    """Rows down and columns right of a centre, of each pixel."""
    return np.indices(shape) - np.reshape(center, (2, 1, 1)).astype(np.float64)


def _blend(image, blob, filling):
    """Fill a soft-edged shape (height, width) of an image."""
    blob = blob[:, :, None]
    return image * (1 - blob) + filling * blob


def _blob(rng, image, center, radius):
    """Draw a soft-edged shape of about this radius, relative to the image's size."""
    size = min(image.shape[:2])
    down, right = pixel_axes(image.shape[:2], center)
    theta = np.arctan2(down, right)
    outline = sum(
        rng.uniform(-0.5, 0.5) / k * np.cos(k * theta + rng.uniform(0, 2 * np.pi))
        for k in range(1, 6)
    )
    edge = radius * size * (1 + 0.5 * outline)
    return np.clip(0.5 + (edge - np.hypot(down, right)) / 1.5, 0, 1)
