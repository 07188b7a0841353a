"""Damping of slow changes of light across an image."""

import torch

# Standard deviation of the blur that separates slow changes from fast ones, in pixels,
# and how far it looks, three of them.
_SIGMA, REACH = 8.0, 24


def damp_light(images, kept):
    """Damp the slow part of images, (n, n_channels, height, width), less their centre.

    So a change of light shows less. The slow part is a Gaussian blur, at the edges the
    mean over the pixels that there are; the fraction `kept` of it stays.
    """
    if kept == 1:
        return images
    start = torch.zeros(1, dtype=torch.long, device=images.device)
    down, across = (
        blur_weights(start, length, 0, length) for length in images.shape[2:]
    )
    return images - (1 - kept) * _blur(images, down, across)


def damp_windows(windows, corners, image_size, kept):
    """Do the same for parts of images, cut out with a margin of `REACH` pixels.

    What lies outside of the image has no weight. Corners, (n, 2), are row and column,
    in the image, of the top left pixel inside the margin. The result, less the margin,
    is exactly these pixels of the damped images.
    """
    inner = windows[:, :, REACH:-REACH, REACH:-REACH]
    if kept == 1:
        return inner
    down, across = (
        blur_weights(start, n_out, REACH, length)
        for start, n_out, length in zip(
            corners.unbind(dim=1), inner.shape[2:], image_size, strict=True
        )
    )
    return inner - (1 - kept) * _blur(windows, down, across)


def blur_weights(starts, n_out, margin, length):
    """Weight of each pixel along an axis in the blur at each pixel of a window.

    As (n, n_out, n_out + 2 * margin).
    """
    pixel = torch.arange(-margin, n_out + margin, device=starts.device)
    away = pixel[margin : margin + n_out, None] - pixel  # (n_out, n_in)
    weights = torch.exp(-away.square() / (2 * _SIGMA**2)) * (away.abs() <= REACH)
    position = starts[:, None] + pixel  # (n, n_in)
    weights = weights * ((position >= 0) & (position < length))[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def _blur(x, down, across):
    return down[:, None] @ x @ across[:, None].mT
