"""Defects for pictures of normal surfaces."""

import numpy as np
from scipy import ndimage

# Smallest visible change of a pixel on the 0..1 scale, about eight levels of 255.
VISIBLE = 0.03


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
    blob = draw_blob(rng, image, center, rng.uniform(0.07, 0.13))
    tints = [(0.35, 0.30, 0.22), (0.55, 0.62, 0.75), (0.75, 0.45, 0.40)]
    tint = np.array(tints[rng.randint(len(tints))])
    tint = tint if image.shape[2] == 3 else tint.mean()
    return _blend(image, blob, image * tint + 0.03)


def _hole(rng, image, center):
    """Punch a small dark hole with a bright, raised rim."""
    blob = draw_blob(rng, image, center, rng.uniform(0.035, 0.06))
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
    blob = draw_blob(rng, image, center, rng.uniform(0.09, 0.14))
    return _blend(image, blob, ndimage.gaussian_filter(image, (3, 3, 0)))


DEFECTS = {
    "scratch": _scratch,
    "stain": _stain,
    "hole": _hole,
    "distortion": _distortion,
    "worn": _worn,
}


def pixel_axes(shape, center=(0, 0)):
    """Rows down and columns right of a centre, of each pixel."""
    return np.indices(shape) - np.reshape(center, (2, 1, 1)).astype(np.float64)


def _blend(image, blob, filling):
    """Fill a soft-edged shape (height, width) of an image."""
    blob = blob[:, :, None]
    return image * (1 - blob) + filling * blob


def draw_blob(rng, image, center, radius, aspect=1.0, turn=0.0):
    """Draw a soft-edged shape of about this radius, relative to the image's size.

    It is narrower, by `aspect`, across the direction `turn`.
    """
    size = min(image.shape[:2])
    down, right = pixel_axes(image.shape[:2], center)
    along = np.cos(turn) * right + np.sin(turn) * down
    beside = aspect * (np.cos(turn) * down - np.sin(turn) * right)
    theta = np.arctan2(beside, along)
    outline = sum(
        rng.uniform(-0.5, 0.5) / k * np.cos(k * theta + rng.uniform(0, 2 * np.pi))
        for k in range(1, 6)
    )
    edge = radius * size * (1 + 0.5 * outline)
    return np.clip(0.5 + (edge - np.hypot(along, beside)) / 1.5, 0, 1)
