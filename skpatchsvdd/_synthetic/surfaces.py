"""Synthetic images: two textures and an aligned object, whole and damaged."""

from numbers import Integral, Real

import numpy as np
from scipy import ndimage
from sklearn.utils import Bunch, check_random_state

from skpatchsvdd._synthetic.defects import VISIBLE, add_defect, pixel_axes
from skpatchsvdd._utils import draw_seed

# Deviation of a pixel's noise on the 0..1 scale, three grey levels of 255.
_CAMERA_NOISE = 0.012


def make_textures(
    n_samples=100,
    *,
    image_size=128,
    anomaly_fraction=0.0,
    kind="fabric",
    random_state=None,
) -> Bunch:
    """Make images of a material or of a part, some of them with a defect.

    Parameters
    ----------
    n_samples : int, default=100
        Number of images.
    image_size : int, default=128
        Height and width in pixels, at least 32.
    anomaly_fraction : float, default=0.0
        Fraction of the images, in [0, 1], that have a defect.
    kind : {"fabric", "wood", "gear"}, default="fabric"
        What the images show. The first two are textures; "gear" is one part, always
        in about the same position.
    random_state : int, RandomState instance or None, default=None
        Makes the images reproducible.

    Returns
    -------
    data : Bunch
        With these attributes:

        images : ndarray of shape (n_samples, image_size, image_size, 3)
            uint8; the normal images first.
        labels : ndarray of shape (n_samples,)
            1 for normal images, -1 for those with a defect.
        masks : ndarray of shape (n_samples, image_size, image_size)
            True at the pixels of the defect.
        defects : ndarray of str of shape (n_samples,)
            "good", "scratch", "stain", "hole", "distortion", "worn" (fabric) or
            "missing" (a gear's tooth).

    Examples
    --------
    >>> from skpatchsvdd.datasets import make_textures
    >>> data = make_textures(4, image_size=64, anomaly_fraction=0.5, random_state=0)
    >>> data.images.shape, data.labels
    ((4, 64, 64, 3), array([ 1,  1, -1, -1]))
    """
    _check_parameters(n_samples, image_size, anomaly_fraction, kind)
    rng = check_random_state(random_state)
    n_abnormal = round(n_samples * anomaly_fraction)
    labels = np.repeat([1, -1], [n_samples - n_abnormal, n_abnormal])
    samples = []
    for label in labels:
        # A generator for each image: the first ones do not depend on how many follow.
        image_rng = np.random.RandomState(draw_seed(rng))
        samples.append(_make_image(image_rng, image_size, kind, label == -1))
    images, masks, defects = zip(*samples, strict=True)
    return Bunch(
        images=np.stack(images),
        labels=labels,
        masks=np.stack(masks),
        defects=np.array(defects),
    )


def _check_parameters(n_samples, image_size, anomaly_fraction, kind):
    counts = (("n_samples", n_samples, 1), ("image_size", image_size, 32))
    for name, value, least in counts:
        if not isinstance(value, Integral) or value < least:
            raise ValueError(
                f"{name} must be an integer of at least {least}, got {value!r}."
            )
    if not isinstance(anomaly_fraction, Real) or not 0 <= anomaly_fraction <= 1:
        raise ValueError(
            f"anomaly_fraction must be in [0, 1], got {anomaly_fraction!r}."
        )
    kinds = list(_DEFECTS_OF)
    if kind not in kinds:
        raise ValueError(f"kind must be one of {kinds}, got {kind!r}.")


def _make_image(rng, size, kind, is_abnormal):
    """Return an image, its mask and the name of its defect."""
    if kind == "gear":
        pose = {"shift": rng.uniform(-1.5, 1.5, 2), "angle": rng.uniform(-0.03, 0.03)}
        surface = _smooth_noise(rng, size, 0.7)
        clean, part = _draw_gear(size, surface, **pose)
    else:
        clean, part = _TEXTURES[kind](rng, size), np.ones((size, size), dtype=bool)
    if not is_abnormal:
        return _photograph(rng, clean, clean, "good")
    defect = rng.choice(_DEFECTS_OF[kind])
    if defect == "missing":
        damaged, _ = _draw_gear(size, surface, **pose, missing=rng.randint(_N_TEETH))
    else:
        damaged = add_defect(rng, clean, part, defect)
    return _photograph(rng, clean, damaged, defect)


def _photograph(rng, clean, image, defect):
    """Light and photograph an image; return it with its mask and defect."""
    mask = np.abs(image - clean).max(axis=2) > VISIBLE
    mask = ndimage.binary_fill_holes(ndimage.binary_closing(mask, iterations=2) | mask)
    down, right = pixel_axes(image.shape[:2]) / len(image) - 0.5
    tilt = rng.uniform(-0.06, 0.06, 2)
    light = rng.uniform(0.96, 1.04) + tilt[0] * down + tilt[1] * right
    image = image * light[:, :, None]
    image = image + rng.normal(0, _CAMERA_NOISE, image.shape)
    return (image.clip(0, 1) * 255).round().astype(np.uint8), mask, defect


# Normal surfaces, each (size, size, 3) on the 0..1 scale.
def _fabric(rng, size):
    """Plain weave: threads that pass over and under each other."""
    period = 8.0
    down, right = pixel_axes((size, size))
    bend = [1.1 * _smooth_noise(rng, size, 14) for _ in range(2)]
    u = (right + bend[0]) / period + rng.uniform()
    v = (down + bend[1]) / period + rng.uniform()
    warp_on_top = (np.floor(u) + np.floor(v)) % 2 == 0
    warp = np.abs(np.sin(np.pi * u)) ** 0.6 * (0.55 + 0.45 * np.abs(np.sin(np.pi * v)))
    weft = np.abs(np.sin(np.pi * v)) ** 0.6 * (0.55 + 0.45 * np.abs(np.sin(np.pi * u)))
    height = np.where(warp_on_top, warp, weft)
    height = height * (1 + 0.06 * _smooth_noise(rng, size, 1.2))
    thread = np.where(warp_on_top[:, :, None], (0.80, 0.74, 0.62), (0.70, 0.66, 0.58))
    return thread * (0.25 + 0.75 * height[:, :, None])


def _wood(rng, size):
    """Planed wood: wavy rings across the grain and fine fibres along it."""
    down, right = pixel_axes((size, size))
    phase = rng.uniform(0, 100)
    noise = _smooth_noise(rng, size, (25, 40))
    wave = 5 * np.sin((right + 60 * phase) / 55) + 3 * noise
    rings = np.sin(2 * np.pi * (down + wave + phase) / 13)
    rings = np.tanh(1.5 * rings) * 0.5 + 0.5
    fibre = _smooth_noise(rng, size, (0.6, 14))
    tone = (0.75 * rings + 0.25 + 0.13 * fibre).clip(0, 1)[:, :, None]
    return (0.50, 0.31, 0.17) * (1 - tone) + np.array((0.80, 0.60, 0.40)) * tone


_TEXTURES = {"fabric": _fabric, "wood": _wood}
_DEFECTS_OF = {
    "fabric": ["scratch", "stain", "hole", "distortion", "worn"],
    "wood": ["scratch", "stain", "hole", "distortion"],
    "gear": ["scratch", "stain", "hole", "distortion", "missing"],
}
_N_TEETH, _N_HOLES = 14, 6  # of the gear: any numbers would do


def _draw_gear(size, surface, shift, angle, missing=None):
    """Draw a gear wheel; return it and the pixels of its face."""
    down, right = pixel_axes((size, size))
    down, right = (down - size / 2 - shift[0]), (right - size / 2 - shift[1])
    radius = np.hypot(down, right) / size
    theta = np.arctan2(down, right) - angle
    turn = theta * _N_TEETH / (2 * np.pi)
    tooth = np.clip(0.5 + 2.2 * np.cos(2 * np.pi * turn), 0, 1)
    if missing is not None:
        tooth = np.where(np.round(turn) % _N_TEETH == missing, 0, tooth)
    edge = 0.355 + 0.065 * tooth
    soften = 1.2 / size
    part = _step(edge - radius, soften) * _step(radius - 0.085, soften)
    sector = 2 * np.pi / _N_HOLES
    around = (theta + sector / 2) % sector - sector / 2
    holes = np.hypot(radius * np.cos(around) - 0.235, radius * np.sin(around))
    part = part * _step(holes - 0.042, soften)
    # Turned metal: fine rings, and a sheen that follows the angle of the light.
    tone = 0.60 + 0.05 * np.sin(radius * size * 1.9) + 0.10 * np.cos(2 * theta - 0.8)
    rim = np.exp(-(((edge - radius) * size / 2.5) ** 2))
    hub = np.exp(-(((radius - 0.14) * size / 1.5) ** 2))
    tone = tone + 0.16 * rim - 0.20 * hub + 0.02 * surface
    ground = 0.13 + 0.012 * surface
    tone = part * tone + (1 - part) * ground
    face = ndimage.binary_erosion(part > 0.9, iterations=2)
    return tone[:, :, None] * np.array((0.98, 0.97, 0.93)), face


def _smooth_noise(rng, size, sigma):
    """Draw noise of standard deviation 1, smoothed over `sigma` pixels."""
    noise = rng.standard_normal((size, size))
    noise = ndimage.gaussian_filter(noise, sigma, mode="wrap")
    return noise / noise.std()


def _step(distance, soften):
    return np.clip(0.5 + distance / soften, 0, 1)
