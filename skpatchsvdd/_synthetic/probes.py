"""Damaged copies of normal images, by which settings are compared without labels."""

import numpy as np
from scipy import ndimage
from scipy.special import logit
from scipy.stats import norm

from skpatchsvdd._synthetic.defects import VISIBLE, draw_blob, pixel_axes

# Changes of light that must not matter: brightness, contrast, and a slope of brightness
# from one side to the other, at most.
_BRIGHTNESS, _CONTRAST, _SLOPE = 0.03, 0.05, 0.03
# All lengths are relative to the shorter side: an image that is read at another size
# gets the same defects, from a few pixels to a quarter of its area. Smaller ones, or
# more faint ones, would rank settings less as real defects do: see bench_judge.py.
_RADIUS = (0.025, 0.28)
_LENGTH, _THICKNESS = (0.08, 0.5), (0.004, 0.015)
_SCRATCHES = 0.2  # the part of defects that are scratches
# The part of defects that are faint, and how strong those are.
_FAINT, _STRENGTH = 0.5, (0.15, 1.0)
# A smaller mean change would be a wrong label; so often a defect is drawn anew.
_LEAST, _N_TRIES = 1e-5, 20
# False alarms as users mostly choose, and the rarest rank of a normal pixel.
_FALSE_ALARMS, _RAREST = 0.05, 1e-3


def make_probes(images, n_damaged, rng):
    """Make copies of normal images: as they are, in another light, with a defect.

    Images (n, height, width, n_channels) are on the 0..1 scale, or on a wider one,
    which is then taken for it. Returns float32 copies, and masks (n_copies, height,
    width), True where a defect can be seen: those of the first 2 n copies are empty.
    """
    low, high = min(images.min(), 0), max(images.max(), 1)
    images = ((images - low) / (high - low)).astype(np.float32)
    places = [_find_places(image) for image in images]
    copies = [*images, *(_change_light(image, rng) for image in images)]
    masks = [np.zeros(images.shape[1:3], dtype=bool)] * len(copies)
    for i in np.tile(np.arange(len(images)), n_damaged):
        # A generator for each: what one draws anew does not change the others.
        of_copy = np.random.RandomState(rng.randint(2**31 - 1))
        damaged, mask = _damage(images, i, places[i], of_copy)
        copies.append(damaged)
        masks.append(mask)
    copies = low + (high - low) * np.stack(copies)
    return copies.astype(np.float32), np.stack(masks)


def rate_scores(scores, is_damaged):
    """Return the part of damaged images that are found at 5% of false alarms.

    Scores are high for normal. The threshold is that of a normal distribution of the
    undamaged ones, and those near it count in part: with few images, counts would jump.
    Negative scores are distances, whose logarithms are closer to such a distribution.
    """
    abnormality = np.log(-scores) if scores.max() < 0 else -scores
    normal = abnormality[~is_damaged]
    spread = max(normal.std(), 1e-9 * np.abs(normal).max(), 1e-30)
    threshold = normal.mean() + norm.isf(_FALSE_ALARMS) * spread
    return norm.cdf((abnormality[is_damaged] - threshold) / spread).mean()


def rate_ranks(ranks):
    """Return how high the pixels of defects rank, 1 is far above all and 0.5 is chance.

    It is the mean of log odds, which do not saturate as the ranks of `rank_pixels` do.
    """
    odds = logit(ranks.clip(_RAREST, 1 - _RAREST))
    return 0.5 + 0.5 * odds.mean() / logit(1 - _RAREST)


def rank_pixels(maps, masks):
    """Return the mean rank, 0..1, of each defect's pixels among undamaged copies'.

    Maps, high for abnormal, may have another size than the masks.
    """
    is_damaged = masks.any(axis=(1, 2))
    normal = [maps[i][::4, ::4].ravel() for i in np.flatnonzero(~is_damaged)]
    normal, ranks = np.sort(np.concatenate(normal)), []
    for i in np.flatnonzero(is_damaged):
        rows, cols = (
            np.arange(n) * n_map // n
            for n, n_map in zip(masks[i].shape, maps[i].shape, strict=True)
        )
        values = maps[i][np.ix_(rows, cols)][masks[i]]
        below = [np.searchsorted(normal, values, side) for side in ("left", "right")]
        ranks.append(np.mean(below) / len(normal))
    return np.array(ranks)


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


def _find_places(image):
    """Return how likely a defect lies at each pixel: more so where there is a part."""
    grey = image.mean(axis=2)
    size = max(min(grey.shape) // 16, 1)
    mean, squares = (ndimage.uniform_filter(x, size) for x in (grey, grey**2))
    contrast = np.sqrt((squares - mean**2).clip(0))
    return np.cumsum(contrast + 0.2 * contrast.mean() + 1e-6)


def _damage(images, i, places, rng):
    """Put a defect on image i; return the copy, and where it can be seen."""
    for _ in range(_N_TRIES):
        place = np.searchsorted(places, rng.uniform() * places[-1])
        place = min(place, len(places) - 1)
        center = np.unravel_index(place, images.shape[1:3])
        draw = _draw_scratch if rng.uniform() < _SCRATCHES else _draw_blot
        cover = draw(rng, images[i], center)
        filling = _FILLINGS[rng.randint(len(_FILLINGS))](rng, images, i, cover)
        is_faint = rng.uniform() < _FAINT
        strength = _log_uniform(rng, *_STRENGTH) if is_faint else 1.0
        change = strength * cover[:, :, None] * (filling - images[i])
        damaged = (images[i] + change).clip(0, 1)
        change = np.abs(damaged - images[i]).max(axis=2)
        if change.mean() > _LEAST and change.max() > VISIBLE:
            break
    return damaged, change > VISIBLE


def _draw_blot(rng, image, center):
    """Draw an irregular shape."""
    aspect, turn = _log_uniform(rng, 1.0, 2.5), rng.uniform(0, np.pi)
    radius = _log_uniform(rng, *_RADIUS)
    return draw_blob(rng, image, center, radius, aspect, turn)


def _draw_scratch(rng, image, center):
    """Draw a thin, bent line; thinner than a pixel, it covers a part of it."""
    size, turn = min(image.shape[:2]), rng.uniform(0, np.pi)
    length = size * _log_uniform(rng, *_LENGTH) / 2
    width = size * _log_uniform(rng, *_THICKNESS) / 2
    down, right = pixel_axes(image.shape[:2], center)
    along = np.cos(turn) * right + np.sin(turn) * down
    beside = np.cos(turn) * down - np.sin(turn) * right
    beside = beside + 0.3 * rng.normal() * along**2 / length
    away = np.hypot(beside, (np.abs(along) - length).clip(0))
    return (0.5 + width - away).clip(0, min(1, 2 * width))


# What a defect shows, (height, width, n_channels).
def _elsewhere(rng, images, i, cover):
    """Show another place of the image, mirrored."""
    move = (rng.uniform(0.1, 0.9, 2) * cover.shape).astype(int)
    return np.roll(images[i], move, axis=(0, 1))[:, ::-1]


def _of_another(rng, images, i, cover):
    """Show a place of another image."""
    i = (i + 1 + rng.randint(max(len(images) - 1, 1))) % len(images)
    return _elsewhere(rng, images, i, cover)


def _moved(rng, images, i, cover):
    """Show what lies beside it."""
    turn, far = rng.uniform(0, 2 * np.pi), _log_uniform(rng, 0.012, 0.06)
    move = min(cover.shape) * far * np.array([np.sin(turn), np.cos(turn)])
    return np.roll(images[i], move.round().astype(int), axis=(0, 1))


def _relit(rng, images, i, cover):
    """Show the image lighter, darker or tinted."""
    light = _log_uniform(rng, 0.05, 0.5) * rng.choice([-1, 1])
    tint = 1 + 0.3 * rng.choice([0, 1]) * rng.normal(size=images.shape[3])
    return images[i] + light * tint


def _of_other_contrast(rng, images, i, cover):
    """Show the image with less or more contrast, around the mean of the place."""
    factor = rng.choice([rng.uniform(0, 0.6), rng.uniform(1.6, 3)])
    # Along one axis: before numpy 2 there are no weights for two.
    pixels = images[i].reshape(-1, images.shape[3])
    mean = np.average(pixels, axis=0, weights=np.maximum(cover, 1e-6).ravel())
    return mean + factor * (images[i] - mean)


def _blurred(rng, images, i, cover):
    """Show the image blurred."""
    sigma = min(cover.shape) * _log_uniform(rng, 0.006, 0.02)
    return ndimage.gaussian_filter(images[i], (sigma, sigma, 0))


def _flat(rng, images, i, cover):
    """Show one colour."""
    return np.broadcast_to(rng.uniform(size=images.shape[3]), images[i].shape)


def _missing(rng, images, i, cover):
    """Show the colour of what surrounds it, as if a part was missing."""
    is_covered = cover > 0
    around = ndimage.binary_dilation(is_covered, iterations=2) & ~is_covered
    return np.median(images[i][around if around.any() else is_covered], axis=0)


_FILLINGS = (
    _elsewhere,
    _of_another,
    _moved,
    _relit,
    _of_other_contrast,
    _blurred,
    _flat,
    _missing,
)


def _log_uniform(rng, low, high):
    return np.exp(rng.uniform(np.log(low), np.log(high)))
