"""Files of named arrays and text, in the layout of safetensors, and what is saved.

Eight bytes with the length of a header, the header in JSON, then the arrays one after
the other. Nothing in such a file is ever run, and everything is checked before memory
is taken for it.
"""

import json
import math
import mmap
import os
import zlib
from dataclasses import fields, replace
from typing import ClassVar

import numpy as np

from skpatchsvdd._utils.files import replaced_when_whole

_CODES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
_CODES |= {"U8": "|u1", "BOOL": "|b1"}
_NAMES = {np.dtype(dtype): code for code, dtype in _CODES.items()}
# Bytes of a header, at most: far more than any model has, little for a memory.
_MAX_HEADER = 2**26
_ALIGNED = 64
# Bytes of arrays that are mapped, at least: a page. Smaller ones gain nothing.
_MAPPED = 4096
_TEXT = "__metadata__"


class Saved:
    """Base of objects of which pickles, copies and model files hold the same.

    The attributes that `_saved` names, or the fields of a dataclass that it is made of;
    not what lives on a device.
    """

    _saved: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def saved_names(cls):
        """Return the names of what is saved."""
        return cls._saved or tuple(x.name for x in fields(cls) if x.init)

    def change(self, **changes):
        """Return a dataclass with other values of some fields."""
        return replace(self, **changes)

    def _unsaved(self):
        """Return what is not saved, by attribute, as it is before any use."""
        return {}

    def __getstate__(self):
        now = vars(self).copy()  # at once: another thread may be changing them
        return {name: now[name] for name in self.saved_names()}

    def __setstate__(self, state):
        if set(state) != set(self.saved_names()):
            raise ValueError(f"{type(self).__name__} is invalid")
        vars(self).update(state, **self._unsaved())


def write_tensors(path, arrays, text):
    """Write arrays {name: ndarray} and text {name: str}, each with a checksum.

    The file is whole, or as it was before.
    """
    arrays = {name: _in_file_order(array) for name, array in arrays.items()}
    # The widest first, so that each begins at a multiple of its width.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    arrays = {name: arrays[name] for name in names}
    header, start = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    sums = {name: _checksum(header[name], array) for name, array in arrays.items()}
    sums |= {f"{_TEXT}.{name}": zlib.crc32(x.encode()) for name, x in text.items()}
    header[_TEXT] = text | {"checksums": json.dumps(sums)}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % _ALIGNED)
    if len(head) > _MAX_HEADER:
        raise ValueError(f"a header of {len(head):,} bytes could not be read again.")
    with replaced_when_whole(path) as partial, partial.open("wb") as stream:
        stream.write(len(head).to_bytes(8, "little"))
        stream.write(head)
        for array in arrays.values():
            stream.write(_as_bytes(array))
        stream.flush()
        os.fsync(stream.fileno())


def read_tensors(path, mmap=False):
    """Read arrays and text, as dicts by name, or raise a ValueError.

    `mmap` maps large arrays into memory, read-only, instead of loading them.
    """
    with open(path, "rb") as stream:
        n_bytes = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(8), "little")
        if n_bytes < 8 or not 2 <= length <= min(_MAX_HEADER, n_bytes - 8):
            raise ValueError(
                "it is not a PatchSVDD model file; joblib.load reads those of joblib"
            )
        header = _parse(stream.read(length))
        text = header.pop(_TEXT, {})
        if not isinstance(text, dict) or {type(x) for x in text.values()} - {str}:
            raise ValueError("section 'header' is invalid")
        sums = _parse(text.pop("checksums", "").encode())
        places = {name: _check_entry(entry) for name, entry in header.items()}
        _check_places(places, n_bytes - 8 - length)
        for name, value in text.items():
            _check_sum(sums, f"{_TEXT}.{name}", zlib.crc32(value.encode()))
        # One mapping, so that the file of all arrays is that of any of them.
        mapped = map_file(stream) if mmap else None
        arrays = {}
        for name, (dtype, shape, (begin, _)) in places.items():
            offset = 8 + length + begin
            size = math.prod(shape) * dtype.itemsize
            if mmap and size >= _MAPPED:
                array = mapped[offset : offset + size].view(dtype).reshape(shape)
            else:
                stream.seek(offset)
                array = np.fromfile(stream, dtype, math.prod(shape)).reshape(shape)
            _check_sum(sums, name, _checksum(header[name], array))
            arrays[name] = array
    return arrays, text


def is_model_file(path):
    """Whether a file begins as one of `write_tensors` does, and not as a pickle."""
    with open(path, "rb") as stream:
        start = stream.read(9)
    return len(start) == 9 and start[8:] == b"{" and start[7] == 0


def _in_file_order(array):
    """Return an array as files hold it, of a wider type where they lack its own."""
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _NAMES:
        dtype = np.float64 if dtype.kind == "f" else np.int64
    return np.ascontiguousarray(array).astype(dtype, copy=False)


def _parse(data):
    try:
        parsed = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError("its header cannot be read") from error
    if not isinstance(parsed, dict):
        raise ValueError("section 'header' is invalid")
    return parsed


def _check_entry(entry):
    """Return dtype, shape and place of an array, as the header has them."""
    try:
        dtype = np.dtype(_CODES[entry["dtype"]])
        shape, place = entry["shape"], entry["data_offsets"]
        numbers = [*shape, *place]
        is_right = (
            len(place) == 2
            and len(shape) <= 8
            and all(type(n) is int and 0 <= n < 2**48 for n in numbers)
            and place[1] - place[0] == math.prod(shape) * dtype.itemsize
        )
    except (KeyError, TypeError) as error:
        raise ValueError("section 'header' is invalid") from error
    if not is_right:
        raise ValueError("an array of it does not have the size that it says")
    return dtype, tuple(shape), place


def _check_places(places, n_bytes):
    """Check that the arrays follow each other up to the end of the file."""
    end = 0
    for begin, stop in sorted(place for *_, place in places.values()):
        if begin != end:
            raise ValueError("its arrays do not follow each other")
        end = stop
    if end != n_bytes:
        raise ValueError(f"it should have {end:,} bytes of arrays and has {n_bytes:,}")


def _checksum(entry, array):
    kind = f"{entry['dtype']}{entry['shape']}".encode()
    return zlib.crc32(_as_bytes(array), zlib.crc32(kind))


def _as_bytes(array):
    flat = np.ascontiguousarray(array).reshape(-1)
    return memoryview(flat).cast("B") if flat.size else b""


def _check_sum(sums, name, found):
    if sums.get(name) != found:
        raise ValueError(f"the checksum of {name} is wrong: the file is damaged")


def map_file(stream):
    """Map an open file as bytes, for reading only, and remember when it was written."""
    mapped = np.memmap(stream, np.uint8, "r")
    mapped.status = os.fstat(stream.fileno())
    return mapped


def check_mapped(array, name):
    """Raise if an array is mapped from a file that is no longer what it was.

    Reading what has been cut off would end the process (SIGBUS).
    """
    while isinstance(array.base, np.ndarray):
        array = array.base
    mapped = array.base
    if not isinstance(mapped, mmap.mmap):
        return
    start = getattr(array, "offset", 0)
    start -= start % mmap.ALLOCATIONGRANULARITY
    if mapped.size() < start + len(mapped):
        file = getattr(array, "filename", None) or "its file"
        raise OSError(
            f"{name} is mapped from {file}, which must have at least "
            f"{start + len(mapped):,} bytes and has {mapped.size():,} now: it has been "
            "cut off. Map it again when it is whole, and replace files by renaming, "
            "not by writing into them."
        )
    if _was_written(array):
        raise OSError(
            f"{name} is mapped from {array.filename}, which was written to since and "
            "no longer holds what it held. Load it again, and replace files by "
            "renaming, as save does, not by writing into them."
        )


def _was_written(mapped):
    before = getattr(mapped, "status", None)
    if before is None or not os.path.exists(mapped.filename):
        return False  # removed, or replaced by another: what is mapped stays
    now = os.stat(mapped.filename)
    is_same_file = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
    return is_same_file and now.st_mtime_ns != before.st_mtime_ns


def as_writable(array):
    """Return a writable view, as torch warns of others. Nothing may write to it."""
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    def __init__(self, array):
        interface = array.__array_interface__
        address, _ = interface["data"]
        self.__array_interface__ = interface | {"data": (address, False)}
        self._array = array  # stays as long as the view does
