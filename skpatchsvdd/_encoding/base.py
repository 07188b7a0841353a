"""What all encoders share, and what can be special about one."""

import hashlib
import math

import numpy as np
import torch
from torch import nn

from skpatchsvdd._utils import normal_mode

# Sizes of the largest patches, and the strides of all scales; those of 32 and 64 are
# the paper's.
DEFAULT_STRIDES = {32: 4, 64: 16, 128: 16}
SMALLEST_PATCH = 32


class PatchEncoder(nn.Module):
    """What all encoders share: patch sizes, and pickles made of plain arrays.

    An encoder maps a patch of one of its `patch_sizes` to a feature. It offers

    - ``encoder(patches)``: features (n, D) of patches (n, c, K, K);
    - ``encoder.encode_patches(batches)``: the same for several batches at once;
    - ``encoder.encode_images(images, strides)``: for each scale, the features of all
      patches of whole images, as (n, D, rows, cols);
    - ``encoder.standardize(images)``, if it is trained: every layer rescaled, so that
      its outputs on these images have mean 0 and deviation 1 before the activation.

    A subclass has `encode_images`, and `encode_patches` unless a patch is encoded as a
    whole image; one that is pretrained also ``make_pretrained(n_channels,
    image_size)``, which makes it with its weights, and `strides`, one for each scale.
    """

    name = None  # what the parameter `encoder` calls it
    # Whether it is pretrained, and stands beside any other one; of those that are
    # not there is one at most.
    is_pretrained = False
    is_trainable = True  # whether it has weights that training changes
    # Whether images are encoded as they are, on the 0..1 scale, or centred and with
    # slow changes of light damped.
    sees_light = False
    # Whether it sees images at full resolution, and coarse scales reduced ones.
    sees_detail = False
    most_rows = None  # patches in a bank of no given size, at most; None is no bound
    # Pixels around a patch that its feature depends on, a multiple of all strides.
    margin = 0
    tile_step = 1  # pixels, of a multiple of which tiles of large images begin
    is_capturable = True  # whether a CUDA graph may hold what it computes
    # How much the maps of its scales count beside those of other encoders.
    exponent = 1 / 32
    dense_stride = 2  # where features over whole images cost least

    def __init__(self, n_channels, embedding_dim, patch_size):
        super().__init__()
        self.config = (n_channels, embedding_dim, patch_size)
        self.patch_sizes = self.scales(patch_size)
        self.scale_names = self.patch_sizes  # what each scale is called
        self.lengths = (embedding_dim,) * len(self.patch_sizes)  # of features

    @property
    def members(self):
        """The encoders that this one is made of: itself."""
        return [self]

    @property
    def scale_weights(self):
        """How much the map of each scale counts among all, as an exponent."""
        largest = max(x.exponent for x in self.members)
        return tuple(
            x.exponent / largest * share for x in self.members for share in x.shares
        )

    @property
    def shares(self):
        """How much its scales count beside each other, 1 in the mean."""
        return (1.0,) * len(self.patch_sizes)

    @staticmethod
    def scales(patch_size):
        """Patch sizes an encoder of this largest patch size inspects."""
        n_scales = int(math.log2(patch_size // SMALLEST_PATCH)) + 1
        return tuple(SMALLEST_PATCH * 2**i for i in range(n_scales))

    @classmethod
    def check_size(cls, patch_size, image_size):
        """Raise if patches of this size cannot be cut out of images."""
        name, length = ("height", "width")[np.argmin(image_size)], min(image_size)
        if length >= patch_size:
            return
        way_out = "Pass larger images, or image_size to have them resized"
        fitting = [x for x in DEFAULT_STRIDES if x <= length]
        if fitting:
            way_out += f", or patch_size={fitting[-1]}"
        raise ValueError(
            f"image {name} {length} is smaller than patch_size={patch_size}. {way_out}."
        )

    @classmethod
    def default_strides(cls, patch_size):
        """Return the stride of each scale."""
        return tuple(DEFAULT_STRIDES[size] for size in cls.scales(patch_size))

    @classmethod
    def check_weights(cls, config, arrays):
        """Raise if arrays are no weights of such an encoder, before it is made."""
        n_channels, embedding_dim, patch_size = config
        first, (*_, last, bias) = arrays[0], arrays
        if (
            (first.shape[1], *bias.shape) != (n_channels, embedding_dim)
            or last.size < 32 * embedding_dim
            or patch_size > max(DEFAULT_STRIDES)
        ):
            raise ValueError("its encoder does not fit its weights")

    def prepare(self):
        """Make ready for inspection, on a device, what only inspects."""

    def share_weights(self):
        """Let weights that are never trained share memory with equal ones."""

    def adapt(self, images, setting):
        """Return the encoder as it is for these images; see `ModuleEncoder`."""
        return self

    def trained_parameters(self):
        """Return the parameters that training changes."""
        return list(self.parameters())

    def encode_patches(self, batches):
        """Return features of batches of patches, as if these were whole images."""
        features = []
        for patches in batches:
            scale = self.patch_sizes.index(patches.shape[-1])
            found = self.encode_images(patches, self.strides)
            features.append(found[scale].flatten(1))
        return features

    def forward(self, patches):
        return self.encode_patches([patches])[0]

    def __reduce__(self):
        # Arrays instead of tensors: loading never needs the device of the training,
        # and joblib can memory-map them.
        return rebuild_encoder, (type(self), self.config, self.weights())

    def weights(self):
        """Return all weights as arrays, in the order of `parameters`."""
        return [p.detach().cpu().numpy() for p in self.parameters()]


def grid_shape(image_size, patch_size, stride):
    """Rows and columns of the patches that fit into an image."""
    return tuple((length - patch_size) // stride + 1 for length in image_size)


@normal_mode()
def rebuild_encoder(cls, config, arrays):
    """Make an encoder of a class and its configuration with these weights."""
    encoder = cls(*config)
    for parameter, array in zip(encoder.parameters(), arrays, strict=True):
        if parameter.shape != array.shape:
            raise ValueError(f"weights of {array.shape} are not {parameter.shape}")
        # By numpy: torch's threads would wait for ever in a process that was forked.
        parameter.data = torch.from_numpy(np.array(array, dtype=np.float32))
    return encoder


def reset_parameters(module, generator):
    """Draw every layer's weights as torch does, but from this generator."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            bound = 1 / math.sqrt(layer.weight[0].numel())
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


class EmptyConv2d(nn.Conv2d):
    """A convolution that leaves the global random state alone when it is made.

    `reset_parameters` follows. (`torch.nn.utils.skip_init` takes seconds to import.)
    """

    def reset_parameters(self):
        """Leave the weights as they are."""


def weights_digest(module):
    """Return a checksum of all weights and buffers, by name, as text."""
    digest = hashlib.sha256()
    for name, x in sorted(module.state_dict().items()):
        if not isinstance(x, torch.Tensor):
            continue
        x = x.detach().cpu().contiguous()
        digest.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        if math.prod(x.shape):
            digest.update(x.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
