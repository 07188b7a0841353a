"""All encoders by name, what `encoder` may hold, and several encoders as one."""

from numbers import Integral

from torch import nn

from skpatchsvdd._encoding.base import PatchEncoder, reset_parameters
from skpatchsvdd._encoding.detail import DetailEncoder
from skpatchsvdd._encoding.modules import make_module_encoder
from skpatchsvdd._encoding.networks import HierarchicalEncoder
from skpatchsvdd._encoding.procedural import ProceduralEncoder

# All that model files may hold. Users name none that `image_size` asks for.
ENCODERS = {x.name: x for x in (HierarchicalEncoder, ProceduralEncoder, DetailEncoder)}


def check_encoder(encoder):
    """Return what the parameter `encoder` holds.

    First the name of the one that cuts images into patches of `patch_size`, or None;
    then a tuple of those that are pretrained, names and modules.
    """
    is_one = isinstance(encoder, str | nn.Module) or not hasattr(encoder, "__iter__")
    given = (encoder,) if is_one else tuple(encoder)
    names = [x for x in given if not isinstance(x, nn.Module)]
    known = [name for name, x in ENCODERS.items() if not x.sees_detail]
    if not given or not all(isinstance(x, str) and x in known for x in names):
        raise ValueError(
            "encoder must be 'auto', one of "
            f"{', '.join(map(repr, known))}, a torch.nn.Module, or a list of some "
            f"of these, got {encoder!r}. skpatchsvdd.encoders.Function makes a module "
            "of a function."
        )
    trained = [x for x in names if not ENCODERS[x].is_pretrained]
    if len(trained) > 1 or any(
        x is other for i, x in enumerate(given) for other in given[:i]
    ):
        raise ValueError(
            "encoder may name 'hierarchical', 'procedural' and modules, each of them "
            f"once, got {list(given)!r}."
        )
    pretrained = tuple(x for x in given if x not in trained)
    return (trained[0] if trained else None), pretrained


def check_strides(strides, encoder, patch_size, image_shape):
    """Return one stride for each scale, if patches of these sizes can be cut out.

    `encoder` is the name of the one that has them, or None: others have their own.
    """
    if encoder is None:
        if strides is not None:
            raise ValueError(
                "strides are those of encoder='hierarchical'; others have their own. "
                f"Pass strides=None, got {strides!r}."
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


def make_encoder(kind, n_channels, embedding_dim, patch_size, generator):
    """Make an encoder, one of `ENCODERS` that are not pretrained, with random weights.

    They are drawn as torch does, from a generator of the CPU, so that every device
    starts from the same ones.
    """
    encoder = ENCODERS[kind](n_channels, embedding_dim, patch_size)
    reset_parameters(encoder, generator)
    return encoder


def make_pretrained(pretrained, images, device, embedding_dim=None):
    """Make pretrained encoders, on the CPU; modules are tried on images.

    `pretrained` is what `check_encoder` returns. Features of "procedural" are embedded
    in `embedding_dim` numbers, if it is given.
    """
    *size, n_channels = images.image_shape
    length = {} if embedding_dim is None else {"embedding_dim": embedding_dim}
    modules = [x for x in pretrained if not isinstance(x, str)]
    return [
        ENCODERS[x].make_pretrained(n_channels, tuple(size), **length)
        if isinstance(x, str)
        else make_module_encoder(x, modules.index(x), images, device)
        for x in pretrained
    ]


def make_detail(images, embedding_dim):
    """Return the encoders of full resolution: one, or none for images of usual size."""
    if images.reduction == 1:
        return []
    n_channels = images.image_shape[2]
    return [DetailEncoder.make_detail(n_channels, images.reduction, embedding_dim)]


def join_encoders(members):
    """Return encoders as one; None among them is left out."""
    members = [x for x in members if x is not None]
    return members[0] if len(members) == 1 else JointEncoder(members)


class JointEncoder(PatchEncoder):
    """Several encoders, whose scales, all named differently, are side by side."""

    def __init__(self, members):
        nn.Module.__init__(self)
        self.joined = nn.ModuleList(members)
        self.config = members[0].config
        self.patch_sizes = tuple(k for x in members for k in x.patch_sizes)
        self.scale_names = _name_scales(members)
        self.lengths = tuple(length for x in members for length in x.lengths)

    @property
    def members(self):
        """The encoders."""
        return list(self.joined)

    def encode_patches(self, batches):
        """Return features of batches of patches, by the first encoder of their size."""
        features = []
        for patches in batches:
            member = next(x for x in self.joined if patches.shape[-1] in x.patch_sizes)
            features += member.encode_patches([patches])
        return features

    def __reduce__(self):
        return JointEncoder, (self.members,)


def _name_scales(members):
    """Return what each scale is called, with its encoder where others are called so."""
    named = []
    for x in members:
        is_taken = set(named).intersection(x.scale_names)
        named += [f"{x.name}.{k}" for k in x.scale_names] if is_taken else x.scale_names
    return tuple(named)
