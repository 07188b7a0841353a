"""All encoders by name, and several as one."""

from torch import nn

from skpatchsvdd._encoding.formulas import FormulaEncoder
from skpatchsvdd._encoding.networks import (
    FlatEncoder,
    HierarchicalEncoder,
    PatchEncoder,
    RawEncoder,
    reset_parameters,
)

# How much the scales of an encoder of patches count beside those of the formulas, as
# the exponent of their maps.
BESIDE = 0.125

ENCODERS = {
    "hierarchical": HierarchicalEncoder,
    "flat": FlatEncoder,
    "raw": RawEncoder,
    "formulas": FormulaEncoder,
}


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


def encoder_scales(kind, patch_size):
    """Patch sizes that an encoder of this kind inspects, smallest first."""
    return ENCODERS[kind].scales(patch_size)


def is_trained(encoder):
    """Whether an encoder has weights that came from training, or could have."""
    return not isinstance(encoder.members[0], FormulaEncoder)


class JointEncoder(PatchEncoder):
    """Several encoders, whose scales are inspected side by side.

    Parameters
    ----------
    members : list of PatchEncoder
        No two of them with the same patch size.
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
    def scale_weights(self):
        """How much the map of each scale counts among all."""
        return tuple(
            1.0 if isinstance(x, FormulaEncoder) else BESIDE
            for x in self.joined
            for _ in x.patch_sizes
        )

    def encode_patches(self, batches):
        """Return features of batches of patches, each by the encoder of its size."""
        features = []
        for patches in batches:
            member = next(x for x in self.joined if patches.shape[-1] in x.patch_sizes)
            features += member.encode_patches([patches])
        return features

    def __reduce__(self):
        return JointEncoder, (self.members,)
