"""The scales that are inspected, and their strides."""

from numbers import Integral

from skpatchsvdd._encoding.formulas import PATCHES, largest_patch
from skpatchsvdd._encoding.networks import FLAT_PATCH
from skpatchsvdd._encoding.registry import encoder_scales

# The paper's for 32 and 64.
DEFAULT_STRIDES = {32: 4, 64: 16, 128: 16}


def check_strides(strides, encoder, has_formulas, patch_size, image_shape):
    """Return one stride for each scale, if patches of these sizes can be cut out.

    Parameters
    ----------
    strides, patch_size : object
        Parameters of the estimator, each valid by itself.
    encoder : str or None
        The encoder of patches, if there is one.
    has_formulas : bool
        Whether the scales of the formulas are inspected, too.
    image_shape : tuple of (height, width, n_channels)
        Of all images.

    Returns
    -------
    strides : tuple of int
        Those of the encoder, smallest scale first, then those of the formulas.
    """
    own = ()
    if encoder is not None:
        own = _check_own(strides, encoder, patch_size, image_shape)
    elif strides is not None:
        raise ValueError(
            "strides are those of the encoders 'hierarchical', 'flat' and 'raw'; "
            f"'formulas' has its own. Pass strides=None, got {strides!r}."
        )
    if not has_formulas:
        return own
    largest = largest_patch(image_shape[:2])
    if largest == 0:
        raise ValueError(
            f"images of {image_shape[0]} x {image_shape[1]} are smaller than the "
            f"smallest patch, {min(PATCHES)} x {min(PATCHES)}. Pass larger images, or "
            "image_size to have them resized."
        )
    known = tuple(stride for size, stride in PATCHES.items() if size <= largest)
    return own + known


def _check_own(strides, encoder, patch_size, image_shape):
    if encoder == "flat" and patch_size != FLAT_PATCH:
        raise ValueError(
            f"encoder='flat' is for patches of {FLAT_PATCH}, got "
            f"patch_size={patch_size}. Pass patch_size={FLAT_PATCH}, or "
            "encoder='hierarchical'."
        )
    _check_patch_fits(image_shape, patch_size, encoder)
    scales = encoder_scales(encoder, patch_size)
    if strides is None:
        return tuple(DEFAULT_STRIDES[size] for size in scales)
    given = tuple(strides)
    if len(given) != len(scales) or not all(
        isinstance(stride, Integral) and stride > 0 for stride in given
    ):
        raise ValueError(
            "strides must be positive integers, one for each of the patch sizes "
            f"{scales}, got {strides!r}."
        )
    return tuple(int(stride) for stride in given)


def _check_patch_fits(image_shape, patch_size, encoder):
    for name, length in zip(("height", "width"), image_shape, strict=False):
        if length < patch_size:
            shortest = min(image_shape[:2])
            fitting = [size for size in DEFAULT_STRIDES if size <= shortest]
            way_out = "Pass larger images, or image_size to have them resized"
            if fitting and encoder != "flat":
                way_out += f", or patch_size={fitting[-1]}"
            raise ValueError(
                f"image {name} {length} is smaller than patch_size={patch_size}. "
                f"{way_out}."
            )
