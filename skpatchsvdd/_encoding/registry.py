"""All encoders by name, what `encoder` may hold, and several encoders as one."""

from torch import nn

from skpatchsvdd._encoding.base import PatchEncoder
from skpatchsvdd._encoding.formulas import FormulaEncoder, make_formula_encoder
from skpatchsvdd._encoding.networks import (
    FlatEncoder,
    HierarchicalEncoder,
    RawEncoder,
    reset_parameters,
)

ENCODERS = {
    x.name: x for x in (HierarchicalEncoder, FlatEncoder, RawEncoder, FormulaEncoder)
}


def check_encoder(encoder):
    """Return what the parameter `encoder` holds.

    Returns
    -------
    patch_encoder : str or None
        The encoder that cuts images into patches of `patch_size`, if there is one.
    frozen : tuple of str
        Those that are known beforehand.
    """
    names = (encoder,) if isinstance(encoder, str) else tuple(encoder)
    if not names or not all(isinstance(x, str) and x in ENCODERS for x in names):
        raise ValueError(
            "encoder must be 'auto', one of "
            f"{', '.join(map(repr, ENCODERS))}, or a list of some of these, got "
            f"{encoder!r}."
        )
    frozen = tuple(x for x in names if ENCODERS[x].is_frozen)
    others = [x for x in names if x not in frozen]
    if len(set(names)) < len(names) or len(others) > 1:
        raise ValueError(
            "encoder may name 'formulas' and one of "
            f"{', '.join(repr(k) for k, x in ENCODERS.items() if not x.is_frozen)}, "
            f"which cut images into the same patches, got {encoder!r}."
        )
    return (others or [None])[0], frozen


def make_encoder(kind, n_channels, embedding_dim, patch_size, generator):
    """Make an encoder with torch's own initialisation, drawn from a generator.

    Parameters
    ----------
    kind : {"hierarchical", "flat", "raw"}
        Which network.
    n_channels : int
        Channels of an image.
    embedding_dim : int
        The paper's D. The raw encoder has none.
    patch_size : int
        K of the largest patches.
    generator : torch.Generator
        A generator of the CPU, so that every device starts from the same weights.

    Returns
    -------
    encoder : PatchEncoder
    """
    encoder = ENCODERS[kind](n_channels, embedding_dim, patch_size)
    reset_parameters(encoder, generator)
    return encoder


def make_frozen(frozen, images):
    """Make the encoders that are known beforehand, for images.

    Parameters
    ----------
    frozen : tuple of str
        What `check_encoder` returns.
    images : ImageStack
        What they are for.

    Returns
    -------
    encoders : list of PatchEncoder
        Each with `strides` of its own.
    """
    *size, n_channels = images.image_shape
    return [make_formula_encoder(n_channels, tuple(size)) for _ in frozen]


def join_encoders(members):
    """Return encoders as one; None among them is left out."""
    members = [x for x in members if x is not None]
    return members[0] if len(members) == 1 else JointEncoder(members)


def is_trained(encoder):
    """Whether an encoder has weights that came from training, or could have."""
    return not encoder.members[0].is_frozen


class JointEncoder(PatchEncoder):
    """Several encoders, whose scales are inspected side by side.

    Parameters
    ----------
    members : list of PatchEncoder
        No two of them with a scale of the same name.
    """

    def __init__(self, members):
        nn.Module.__init__(self)
        self.joined = nn.ModuleList(members)
        self.config = members[0].config
        self.patch_sizes = tuple(k for x in members for k in x.patch_sizes)

    @property
    def members(self):
        """The encoders."""
        return list(self.joined)

    @property
    def scale_names(self):
        """What each scale is called."""
        return tuple(name for x in self.joined for name in x.scale_names)

    @property
    def scale_weights(self):
        """How much the map of each scale counts among all: as an exponent."""
        largest = max(x.exponent for x in self.joined)
        return tuple(x.exponent / largest for x in self.joined for _ in x.patch_sizes)

    def encode_patches(self, batches):
        """Return features of batches of patches, each by an encoder of its size."""
        features = []
        for patches in batches:
            member = next(x for x in self.joined if patches.shape[-1] in x.patch_sizes)
            features += member.encode_patches([patches])
        return features

    def __reduce__(self):
        return JointEncoder, (self.members,)
