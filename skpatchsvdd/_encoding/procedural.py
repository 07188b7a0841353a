"""The network that has learnt on procedural images alone, its features embedded."""

import functools
import hashlib
import itertools
from collections import OrderedDict
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.resources import files
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from skpatchsvdd._encoding.base import (
    EmptyConv2d,
    PatchEncoder,
    weights_digest,
)
from skpatchsvdd._encoding.scales import LARGEST, SCALES, take_patches, zoom_images
from skpatchsvdd._utils import make_lock, read_tensors

# Channels of the first layer, at every second pixel, and of the stages after it, each
# at half the resolution of the one before.
STEM, STAGES = 32, (64, 128, 224)
N_BLOCKS = 2
# Numbers that the features of each stage are brought to, along their main axes: few
# enough to search fast.
LENGTH = 64
# Weights that come with the package: docs/user_guide/procedural.rst.
WEIGHTS = files("skpatchsvdd._encoding") / "procedural.safetensors"
_MID_GREY = 0.5
# Pixels around a patch that its features depend on, and of a multiple of which tiles
# begin: the cells of all stages begin there, too, at all sizes of an image.
MARGIN, TILE_STEP = 192, 64
# Bytes of features that are held, at most: five hundred images of 256 x 256.
_CACHE_LIMIT = 2**28
# Modules that are never trained again, by their weights and where these lie.
_SHARED, _SHARING = WeakValueDictionary(), make_lock()


class ProceduralEncoder(PatchEncoder):
    """Features of a network pretrained on procedural images, linearly embedded.

    The network stays as it is. The embedding, a matrix for each scale, is what training
    changes; the first one takes the first D of 64 features, which are sorted by how
    much they vary. `patch_size` is the largest of `SCALES` that fits into images.

    A feature also depends on what lies around its patch. Images are taken as they are,
    on the 0..1 scale. The network has three channels: other numbers of them are brought
    to three by means, of grey images by repetition.
    """

    name = "procedural"
    is_pretrained = True
    sees_light = True
    margin, tile_step = MARGIN, TILE_STEP
    exponent = 1 / 4
    full_length = LENGTH  # of features before they are embedded

    def __init__(self, n_channels, embedding_dim=LENGTH, patch_size=LARGEST):
        super().__init__(n_channels, embedding_dim, patch_size)
        self.network = PretrainedNetwork()
        self.project = nn.ModuleList(EmptyConv2d(n, LENGTH, 1) for n in STAGES)
        self.embedding = nn.ParameterList(
            torch.eye(embedding_dim, LENGTH) for _ in self.patch_sizes
        )
        self._digest = None

    @staticmethod
    def scales(patch_size):
        """Return the patch sizes that are inspected, up to a largest one."""
        return tuple(size for size in SCALES if size <= patch_size)

    @property
    def strides(self):
        """The strides of its scales, which are its own."""
        return self.default_strides(self.config[2])

    @property
    def shares(self):
        """How much its scales count beside each other, 1 in the mean."""
        weights = [SCALES[size].weight for size in self.patch_sizes]
        return tuple(x * len(weights) / sum(weights) for x in weights)

    @classmethod
    def make_pretrained(cls, n_channels, image_size, embedding_dim=LENGTH):
        """Return the encoder with the weights of the package, for images of a size."""
        patch_size = largest_patch(image_size)
        cls.check_size(patch_size, image_size)
        if embedding_dim > LENGTH:
            raise ValueError(
                f"embedding_dim must be at most {LENGTH} with encoder='procedural', "
                f"whose features have {LENGTH} numbers, got {embedding_dim}. Pass a "
                "smaller one, or encoder='hierarchical'."
            )
        return cls(n_channels, embedding_dim, patch_size).load_weights()

    def load_weights(self):
        """Take the weights of the package, and return the encoder."""
        arrays, _ = _read_shipped(WEIGHTS)
        for name, parameter in self.named_parameters():
            if name in arrays:
                parameter.data = torch.from_numpy(arrays[name].astype(np.float32))
        return self.requires_grad_(False)

    def trained_parameters(self):
        """Return the embedding: the network is never trained again."""
        return list(self.embedding)

    def embed(self, matrices):
        """Return a copy with another embedding, a matrix (D, 64) for each scale."""
        matrices = [x.detach().float().cpu() for x in matrices]
        n_channels, _, patch_size = self.config
        embedded = type(self)(n_channels, len(matrices[0]), patch_size)
        own = zip(self.parameters(), embedded.parameters(), strict=True)
        for old, new in own:
            new.data = old.detach().cpu().clone()
        for parameter, matrix in zip(embedded.embedding, matrices, strict=True):
            parameter.data = matrix.clone()
        return embedded.requires_grad_(False)

    @classmethod
    def check_size(cls, patch_size, image_size):
        """Raise if images are smaller than the smallest patch."""
        if patch_size == 0:
            height, width = image_size
            raise ValueError(
                f"images of {height} x {width} are smaller than the smallest patch, "
                f"{min(SCALES)} x {min(SCALES)}. Pass larger images, or image_size "
                "to have them resized."
            )

    @classmethod
    def default_strides(cls, patch_size):
        """Return the stride of each scale, up to a largest one."""
        return tuple(SCALES[size].stride for size in cls.scales(patch_size))

    @classmethod
    def check_weights(cls, config, arrays):
        """Raise if an embedding is longer than the features."""
        if not 1 <= config[1] <= LENGTH:
            raise ValueError("its encoder does not fit its weights")

    def prepare(self):
        """Lay weights out as images are, which is twice as fast."""
        self.to(memory_format=torch.channels_last)
        self.share_weights()

    def share_weights(self):
        """Use the memory of the same weights elsewhere, if they are in use."""
        for module in (self.network, self.project):
            _share_weights(module)

    def encode_images(self, images, strides):
        """Return features of all patches of whole images, by scale."""
        found = self.recall_pretrained(images)
        pairs = zip(self.embedding, found, strict=False)
        return [F.conv2d(x, matrix[:, :, None, None]) for matrix, x in pairs]

    def digest(self):
        """Return a digest of all weights but the embedding, and of the scales."""
        known = (self.network, self.project)
        versions = [p._version for x in known for p in x.parameters()]  # count changes
        if self._digest is None or self._digest[0] != versions:
            self._digest = versions, (self.patch_sizes, *map(weights_digest, known))
        return self._digest[1]

    def recall_pretrained(self, images):
        """Return `encode_pretrained` of images, from the cache if it may be there.

        It is not on a GPU, which has encoded images before their digest is computed,
        and where somebody asks for gradients.
        """
        is_cpu = images.device.type == "cpu"
        if not is_cpu or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.encode_pretrained(images)
        return CACHE(self.encode_pretrained, images, self.digest)

    def encode_pretrained(self, images):
        """Return the features of all patches before they are embedded, by scale.

        Of images that are patches themselves, those of the scales that fit.
        """
        if images.shape[1] != 3:
            images = to_three_channels(images)
        image_size = images.shape[2:]
        sizes = [x for x in self.patch_sizes if x <= min(image_size)]
        features = {}
        for zoom in dict.fromkeys(SCALES[size].zoom for size in sizes):
            stage_of = {k: SCALES[k].stage for k in sizes if SCALES[k].zoom == zoom}
            stages = self.network(zoom_images(images, zoom), 1 + max(stage_of.values()))
            for size, stage in stage_of.items():
                x = take_patches(stages[stage], size, image_size)
                features[size] = self.project[stage](x)
        return [features[size] for size in sizes]

    def weights(self):
        """Return all weights, those that come with the package in half precision."""
        arrays, n = super().weights(), len(self.embedding)
        return [x.astype(np.float16) for x in arrays[:-n]] + arrays[-n:]


def to_three_channels(images):
    """Repeat a single channel; of others, take three means along the channels."""
    n, _, height, width = images.shape
    x = images.permute(0, 2, 3, 1).flatten(1, 2)  # (n, pixels, c)
    return F.adaptive_avg_pool1d(x, 3).view(n, height, width, 3).permute(0, 3, 1, 2)


def _share_weights(module):
    own = list(module.parameters())
    places = [(p.device, p.stride()) for p in own]
    key = weights_digest(module), str(places)
    with _SHARING:
        other = list(_SHARED.setdefault(key, module).parameters())
        if [(p.device, p.stride()) for p in other] != places:  # moved since
            _SHARED[key], other = module, own
        for mine, theirs in zip(own, other, strict=True):
            mine.data = theirs.data


_read_shipped = functools.lru_cache(maxsize=1)(read_tensors)


def largest_patch(image_size):
    """Return the largest patch size of "procedural" that fits into an image, or 0."""
    return max((size for size in SCALES if size <= min(image_size)), default=0)


class FeatureCache:
    """The latest features by a digest of the pixels they were computed from.

    A fit encodes each image several times, and a search fits to the same images again
    and again, with another embedding each time. An image of which a single bit differs
    has another digest, and so has a network. It is filled while estimators fit, and
    read whenever it holds anything. Processes have one each, and threads share it.
    """

    def __init__(self, limit=_CACHE_LIMIT):
        self.limit = limit
        self.n_bytes = 0
        self._found = OrderedDict()
        self._lock = make_lock()
        self._is_filling = ContextVar("is_filling", default=False)

    def __len__(self):
        return len(self._found)

    @contextmanager
    def filling(self):
        """Let what this thread encodes meanwhile be held."""
        token = self._is_filling.set(True)
        try:
            yield
        finally:
            self._is_filling.reset(token)

    def clear(self):
        """Let go of everything."""
        with self._lock:
            self._found.clear()
            self.n_bytes = 0

    def __call__(self, encode, images, identify=str):
        """Return ``encode(images)``, a list of tensors, which must not be changed.

        ``identify()`` gives a digest of what encodes.
        """
        is_filling = self._is_filling.get()
        if not (self._found or is_filling):
            return encode(images)
        pixels = images.contiguous().numpy().data
        digest = hashlib.blake2b(pixels, digest_size=16).digest()
        # Sums are rounded by the number of threads.
        key = identify(), images.shape, torch.get_num_threads(), digest
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        features = encode(images)
        n_bytes = _count_bytes(features)
        if not is_filling or n_bytes > self.limit:
            return features
        with self._lock:
            if key not in self._found:
                self._found[key] = features
                self.n_bytes += n_bytes
            while self.n_bytes > self.limit:
                _, oldest = self._found.popitem(last=False)
                self.n_bytes -= _count_bytes(oldest)
        return features


def _count_bytes(features):
    return sum(x.element_size() * x.numel() for x in features)


CACHE = FeatureCache()
remembering = CACHE.filling  # for what encodes images again and again, as `fit`


def clear_cache() -> None:
    """Let go of the features of images that estimators were fitted to.

    On a CPU, up to 256 MiB of features before they are embedded are kept for further
    fits of a search, see :ref:`search_time`. Nothing but the time of the next fit
    depends on them.

    Examples
    --------
    >>> import skpatchsvdd
    >>> skpatchsvdd.clear_cache()
    """
    CACHE.clear()


class PretrainedNetwork(nn.Module):
    """Residual stages at every fourth, eighth and sixteenth pixel that it sees.

    Images are continued by their own edges: zeros there would tell a network where in
    the image it is. For training, layers are followed by batch norm; else they have a
    bias.
    """

    def __init__(self, norm=False):
        super().__init__()
        self.stem = Layer(3, STEM, stride=2, norm=norm)
        self.stages = nn.ModuleList(
            Stage(n_in, n_out, norm)
            for n_in, n_out in itertools.pairwise((STEM, *STAGES))
        )

    def forward(self, images, n_stages=None):
        """Return features by stage, or of the first ones; images are in 0..1."""
        x = self.stem(images - _MID_GREY).relu_()
        features = []
        for stage in self.stages[:n_stages]:
            x = stage(x)
            features.append(x)
        return features


class Layer(nn.Module):
    """A convolution of 3 x 3 over an image that is continued by its edges."""

    def __init__(self, n_in, n_out, stride=1, norm=False):
        super().__init__()
        make = nn.Conv2d if norm else EmptyConv2d  # weights to train, or to be read
        self.conv = make(n_in, n_out, 3, stride=stride, bias=not norm)
        self.norm = nn.BatchNorm2d(n_out) if norm else nn.Identity()

    def forward(self, x):
        """Return what the layer makes of features, before the activation."""
        return self.norm(self.conv(_continue_edges(x)))


def _continue_edges(x):
    """Repeat the first and last rows and columns."""
    if x.device.type == "cpu":
        return F.pad(x, (1, 1, 1, 1), mode="replicate")
    # A GPU's padding would change the layout in memory.
    x = torch.cat([x[:, :, :1], x, x[:, :, -1:]], dim=2)
    return torch.cat([x[..., :1], x, x[..., -1:]], dim=3)


class Stage(nn.Module):
    """Half the resolution, then residual blocks."""

    def __init__(self, n_in, n_out, norm):
        super().__init__()
        self.down = Layer(n_in, n_out, stride=2, norm=norm)
        self.blocks = nn.ModuleList(
            nn.ModuleList(Layer(n_out, n_out, norm=norm) for _ in range(2))
            for _ in range(N_BLOCKS)
        )

    def forward(self, x):
        """Return features at half the resolution."""
        x = self.down(x).relu_()
        for first, second in self.blocks:
            x = second(first(x).relu_()).add_(x).relu_()
        return x


def fold_norms(network, folded=None):
    """Return a network without batch norm that gives the same features.

    `folded` is one to write into, a new `PretrainedNetwork` if it is not given.
    """
    folded = PretrainedNetwork() if folded is None else folded
    pairs = zip(_layers(network), _layers(folded), strict=True)
    with torch.no_grad():
        for layer, plain in pairs:
            norm = layer.norm
            scale = norm.weight / (norm.running_var + norm.eps).sqrt()
            plain.conv.weight.copy_(layer.conv.weight * scale[:, None, None, None])
            plain.conv.bias.copy_(norm.bias - norm.running_mean * scale)
    return folded


def _layers(network):
    return [x for x in network.modules() if isinstance(x, Layer)]
