"""All encoders by name, what `encoder` may hold, and several encoders as one."""

from torch import nn

from skpatchsvdd._encoding.base import PatchEncoder
from skpatchsvdd._encoding.formulas import FormulaEncoder
from skpatchsvdd._encoding.modules import make_module_encoder
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
    frozen : tuple of str and torch.nn.Module
        Those that are known beforehand.
    """
    is_one = isinstance(encoder, str | nn.Module)
    given = (encoder,) if is_one or not _is_list(encoder) else tuple(encoder)
    names = [x for x in given if not isinstance(x, nn.Module)]
    if not given or not all(isinstance(x, str) and x in ENCODERS for x in names):
        raise ValueError(
            "encoder must be 'auto', one of "
            f"{', '.join(map(repr, ENCODERS))}, a torch.nn.Module, or a list of some "
            f"of these, got {encoder!r}. skpatchsvdd.encoders.Function makes a module "
            "of a function."
        )
    _check_once(given)
    frozen = tuple(x for x in given if x not in names or ENCODERS[x].is_frozen)
    return next((x for x in names if not ENCODERS[x].is_frozen), None), frozen


def _is_list(encoder):
    return hasattr(encoder, "__iter__")


def _check_once(given):
    """Raise if encoders stand twice in a list, or would cut out the same patches."""
    cutting = [k for k, x in ENCODERS.items() if not x.is_frozen]
    if sum(x in cutting for x in given if isinstance(x, str)) > 1 or any(
        x is other for i, x in enumerate(given) for other in given[:i]
    ):
        raise ValueError(
            "encoder may name 'formulas', modules, and one of "
            f"{', '.join(map(repr, cutting))}, which cut images into the same patches, "
            f"each of them once, got {list(given)!r}."
        )


def make_encoder(kind, n_channels, embedding_dim, patch_size, generator):
    """Make an encoder with torch's own initialisation, drawn from a generator.

    Parameters
    ----------
    kind : str
        Which one of `ENCODERS` that are not frozen.
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


def make_frozen(frozen, images, device, embedding_dim=None):
    """Make the encoders that are known beforehand, for images.

    Parameters
    ----------
    frozen : tuple of str and torch.nn.Module
        What `check_encoder` returns.
    embedding_dim : int or None
        The length that the features of formulas are embedded in, if they are.
    images : ImageStack
        What they are for; modules are tried on them.
    device : torch.device
        Where they are to work.

    Returns
    -------
    encoders : list of PatchEncoder
        On the CPU, each with `strides` of its own.
    """
    *size, n_channels = images.image_shape
    made, n_modules = [], 0
    length = {} if embedding_dim is None else {"embedding_dim": embedding_dim}
    for x in frozen:
        if isinstance(x, str):
            made.append(ENCODERS[x].make_frozen(n_channels, tuple(size), **length))
        else:
            made.append(make_module_encoder(x, n_modules, images, device))
            n_modules += 1
    return made


def join_encoders(members):
    """Return encoders as one; None among them is left out."""
    members = [x for x in members if x is not None]
    return members[0] if len(members) == 1 else JointEncoder(members)


def is_trained(encoder):
    """Whether an encoder has weights that came from training, or could have."""
    return encoder.members[0].is_trainable


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
    def lengths(self):
        """Numbers in a feature of each scale."""
        return tuple(length for x in self.joined for length in x.lengths)

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
