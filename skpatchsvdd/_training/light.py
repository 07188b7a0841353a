"""Changes of light that should not matter."""

# Random change of brightness in training, at most, on the 0..1 scale: eight grey
# levels of 255.
_BRIGHTNESS = 0.03


def relight(images, draws):
    """Make each of some images (n, n_channels, height, width) lighter or darker.

    Contrast stays as it is: features that do not see it take a dull image for one that
    is only lit differently.
    """
    return images + draws.uniform(-_BRIGHTNESS, _BRIGHTNESS, (len(images), 1, 1, 1))
