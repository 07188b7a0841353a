"""The scales that are inspected, and their strides."""

from numbers import Integral

from skpatchsvdd._encoding.registry import ENCODERS


def check_strides(strides, encoder, patch_size, image_shape):
    """Return one stride for each scale, if patches of these sizes can be cut out.

    Parameters
    ----------
    strides, patch_size : object
        Parameters of the estimator, each valid by itself.
    encoder : str or None
        The encoder that has them, if there is one: others have their own.
    image_shape : tuple of (height, width, n_channels)
        Of all images.

    Returns
    -------
    strides : tuple of int
        Smallest scale first.
    """
    if encoder is None:
        if strides is not None:
            raise ValueError(
                "strides are those of the encoders 'hierarchical', 'flat' and 'raw'; "
                f"others have their own. Pass strides=None, got {strides!r}."
            )
        return ()
    kind = ENCODERS[encoder]
    kind.check_size(patch_size, image_shape[:2])
    if strides is None:
        return kind.default_strides(patch_size)
    scales, given = kind.scales(patch_size), tuple(strides)
    if len(given) != len(scales) or not all(
        isinstance(stride, Integral) and stride > 0 for stride in given
    ):
        raise ValueError(
            "strides must be positive integers, one for each of the patch sizes "
            f"{scales}, got {strides!r}."
        )
    return tuple(int(stride) for stride in given)
