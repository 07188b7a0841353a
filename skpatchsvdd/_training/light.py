"""Changes of light that should not matter."""

# Random change of brightness in training, at most, on the 0..1 scale: eight grey
# levels of 255.
_BRIGHTNESS = 0.03


def relight(images, draws):
    """Make each of some images a little lighter or darker.

    Contrast stays as it is: features that do not see it take a dull image for one that
    is only lit differently.

    Parameters
    ----------
    images : tensor of shape (n, n_channels, height, width)
        On the 0..1 scale.
    draws : Draws
        Where the random numbers come from.

    Returns
    -------
    relit : tensor of shape (n, n_channels, height, width)
    """
    return images + draws.uniform(-_BRIGHTNESS, _BRIGHTNESS, (len(images), 1, 1, 1))
