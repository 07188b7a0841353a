"""A fitted estimator as arrays and text, and back."""

import json

import numpy as np
from torch import nn

from skpatchsvdd._bank import ApproximateIndex, ExactIndex, PatchSample, Variation
from skpatchsvdd._calibration import Calibration
from skpatchsvdd._encoding import (
    ENCODERS,
    DenseSetting,
    JointEncoder,
    ModuleEncoder,
    rebuild_encoder,
)
from skpatchsvdd._feedback import DefectBank, Feedback, KnownDefects
from skpatchsvdd._parameters import Inspection, Training
from skpatchsvdd._scoring import EncodedImages, FittedBank
from skpatchsvdd._screening import Suspects
from skpatchsvdd._storage.own_modules import GivenModules, describe_module
from skpatchsvdd._utils import check_file_name, read_tensors, write_tensors
from skpatchsvdd._version import __version__

# Counts up when files change so that an older package cannot read them.
_FORMAT = 1
# Numbers of float32 in files, in 128 of whose squares there is no overflow.
_LARGEST = 1e15
_UNUSABLE = (
    "it holds NaN, infinite or huge numbers, with which scores would be NaN. Fit "
    "again, on images whose values are about 0..1"
)
# Parameters that are objects: a file holds their values, by name.
_SETTINGS = {cls.__name__: cls for cls in (Training, Inspection)}
_CONTAINERS = {"list": list, "tuple": tuple, "set": set}
# From so many items on, text is an array of its own, and not part of a header: there
# may be a hundred thousand images.
_LONG = 16
# The classes of the package of which files hold objects, by name, besides encoders and
# the approximate index, which is saved as the exact one and built anew. What is saved
# of an object stands in its class: the fields of a named tuple, or what
# `Saved.saved_names` returns, of which pickles are made as well.
OBJECTS = {
    cls.__name__: cls
    for cls in (
        *(FittedBank, ExactIndex, Variation, DenseSetting, PatchSample),
        *(Calibration, EncodedImages, Feedback, KnownDefects, DefectBank, Suspects),
    )
}


def write_model(path, parameters, learnt):
    """Write a model: parameters of an estimator, and what it has learnt, as dicts."""
    packer = _Packer()
    content = {
        "parameters": packer.pack_dict(parameters),
        "learnt": packer.pack_dict(learnt),
    }
    text = {
        "format": f"skpatchsvdd {_FORMAT}",
        "version": __version__,
        "content": json.dumps(content, separators=(",", ":")),
    }
    write_tensors(path, packer.arrays, text)


def read_model(path, mmap=False, encoder=None):
    """Read parameters and what was learnt, as dicts, of a model.

    A ValueError names the file and says what is wrong with it. `encoder` is what it was
    fitted with, if that holds modules of a user.
    """
    path = check_file_name(path)
    try:
        arrays, text = read_tensors(path, mmap)
        name, _, number = text.get("format", "").partition(" ")
        if name != "skpatchsvdd":
            raise ValueError("it is not a PatchSVDD model file")
        if number != str(_FORMAT):
            raise ValueError(
                f"it was written by skpatchsvdd {text.get('version')}, which is newer. "
                "Install that version"
            )
        content = json.loads(text["content"])
        unpacker = _Unpacker(arrays, GivenModules(encoder))
        parts = [unpacker.unpack(content[x]) for x in ("parameters", "learnt")]
        if not all(isinstance(part, dict) for part in parts):
            raise ValueError("section 'content' is invalid")
        unpacker.modules.check_all_used()
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be loaded: it is damaged.") from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}.") from error
    return parts


class _Packer:
    """Turns values into what JSON can hold, and sets arrays aside."""

    def __init__(self):
        self.arrays = {}
        self._modules = []  # of the user, as parameters, in their order

    def pack_dict(self, values):
        pairs = []
        for key, value in values.items():
            try:
                pairs.append([key, self.pack(value)])
            except (TypeError, ValueError) as error:
                raise type(error)(f"{key} cannot be saved: {error}") from error
        return {"dict": pairs}

    def pack(self, value):
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return self._pack_array(value)
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, dict):
            return self.pack_dict(value)
        if type(value) in (list, tuple, set):
            return self._pack_items(value)
        return self._pack_object(value)

    def _pack_items(self, value):
        kind = type(value).__name__
        items = [self.pack(x) for x in (sorted(value) if kind == "set" else value)]
        if len(items) < _LONG:
            return {kind: items}
        text = json.dumps(items, separators=(",", ":")).encode()
        return {"long": self._pack_array(np.frombuffer(text, np.uint8)), "in": kind}

    def _pack_array(self, array):
        if array.dtype.kind in "OU":  # names of groups
            return {"objects": self.pack(array.tolist())}
        if array.dtype.kind not in "biuf":
            raise TypeError(f"arrays of {array.dtype} have no place in a file")
        if not are_usable(array):
            raise ValueError(_UNUSABLE)
        name = f"array {len(self.arrays)}"
        self.arrays[name] = array
        return {"array": name}

    def _pack_object(self, value):
        if isinstance(value, ApproximateIndex):
            return {"approximate": self.pack(value._exact)}
        if type(value) in _SETTINGS.values():
            values = self.pack_dict(value.get_params(deep=False))
            return {"settings": type(value).__name__, "of": values}
        if isinstance(value, JointEncoder):
            return {"joint": [self.pack(x) for x in value.members]}
        if isinstance(value, ModuleEncoder):
            return {"module_encoder": self.pack_dict(describe_module(value))}
        for kind, cls in ENCODERS.items():
            if type(value) is cls:
                weights = self.pack(value.weights())
                return {"encoder": kind, "config": value.config, "of": weights}
        if isinstance(value, nn.Module):
            self._modules.append(value)
            return {"module": len(self._modules) - 1}
        name = type(value).__name__
        if type(value) is not OBJECTS.get(name):
            raise TypeError(f"a {name} has no place in a file")
        is_tuple = isinstance(value, tuple)
        fields = value._asdict() if is_tuple else value.__getstate__()
        return {"object": name, "of": self.pack_dict(fields)}


class _Unpacker:
    """The reverse of `_Packer`."""

    def __init__(self, arrays, modules):
        self._arrays = arrays
        self.modules = modules

    def unpack(self, value):
        if not isinstance(value, dict):
            if isinstance(value, list):
                raise TypeError("lists carry a tag")
            return value
        kind = next(iter(value), None)
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](map(self.unpack, value[kind]))
        return getattr(self, f"_unpack_{kind}")(value[kind], value)

    def _unpack_dict(self, pairs, _):
        return {key: self.unpack(value) for key, value in pairs}

    def _unpack_bytes(self, text, _):
        return bytes.fromhex(text)

    def _unpack_objects(self, items, _):
        return np.array(self.unpack(items))

    def _unpack_long(self, letters, value):
        items = json.loads(self.unpack(letters).tobytes())
        return _CONTAINERS[value["in"]](map(self.unpack, items))

    def _unpack_array(self, name, _):
        if not are_usable(self._arrays[name]):
            raise ValueError(_UNUSABLE)
        return self._arrays[name]

    def _unpack_approximate(self, index, _):
        exact = self.unpack(index)
        return ApproximateIndex(exact.bank(), None, exact._seed)

    def _unpack_joint(self, members, _):
        return JointEncoder([self.unpack(x) for x in members]).eval()

    def _unpack_module(self, number, _):
        return self.modules.parameter(number)

    def _unpack_module_encoder(self, fields, _):
        return self.modules.make_encoder(self.unpack(fields))

    def _unpack_settings(self, name, value):
        return _SETTINGS[name](**self.unpack(value["of"]))

    def _unpack_encoder(self, kind, value):
        n_channels, embedding_dim, patch_size = map(int, value["config"])
        arrays = self.unpack(value["of"])
        config = n_channels, embedding_dim, patch_size
        ENCODERS[kind].check_weights(config, arrays)  # before memory is taken for them
        return rebuild_encoder(ENCODERS[kind], config, arrays).eval()

    def _unpack_object(self, name, value):
        cls, fields = OBJECTS[name], self.unpack(value["of"])
        if issubclass(cls, tuple):
            if set(fields) != set(cls._fields):
                raise ValueError(f"section {name!r} is invalid")
            return cls(**fields)
        made = cls.__new__(cls)
        made.__setstate__(fields)
        if cls is ExactIndex:
            _check_index(made)
        return made


def are_usable(array):
    """Whether the numbers of an array are finite, and so are squares of float32."""
    if array.dtype.kind != "f" or array.size == 0:
        return True
    # No array of booleans: a bank may fill a quarter of the memory.
    ends = np.array([array.min(), array.max()])
    return bool(np.isfinite(ends).all()) and (
        array.dtype != np.float32 or abs(ends).max() < _LARGEST
    )


def _check_index(index):
    """Check that the parts of an index fit each other."""
    n_rows, n_features = index.rows.shape
    centers, starts = index.centers, index.starts
    is_right = (
        index.rows.dtype == np.float32
        and index.owners.shape == (n_rows,)
        and index.places.shape == (n_rows, 2)
        and n_rows > 0
        and type(index._seed) is int
        and 0 <= index._seed < 2**63
    ) and (
        centers is None
        or (
            centers.shape == (len(starts) - 1, n_features)
            and (centers.dtype, starts.dtype) == (np.float32, np.int64)
            and (starts[0], starts[-1]) == (0, n_rows)
            and (np.diff(starts) >= 0).all()
        )
    )
    if not is_right:
        raise ValueError("section 'bank' is invalid")
