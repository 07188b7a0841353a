"""Files of named arrays and text, in the layout of safetensors.

Eight bytes with the length of a header, the header in JSON, then the arrays one after
the other. Nothing in such a file is ever run, and everything is checked before memory
is taken for it.
"""

import json
import math
import os
import zlib

import numpy as np

from skpatchsvdd._utils.files import replaced_when_whole
from skpatchsvdd._utils.mapped import map_file

_CODES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
_CODES |= {"U8": "|u1", "BOOL": "|b1"}
# The types of arrays that files hold, and their names there.
NAMES = {np.dtype(dtype): code for code, dtype in _CODES.items()}
# Bytes of a header, at most: far more than any model has, little for a memory.
_MAX_HEADER = 2**26
_ALIGNED = 64
# Bytes of arrays that are mapped, at least: a page. Smaller ones gain nothing.
_MAPPED = 4096
_TEXT = "__metadata__"


def write_tensors(path, arrays, text):
    """Write arrays {name: ndarray} and text {name: str}, each with a checksum.

    The file is whole, or as it was before.
    """
    # The widest first, so that each begins at a multiple of its width.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    arrays = {name: _in_file_order(arrays[name]) for name in names}
    header, start = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": NAMES[array.dtype],
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
            stream.write(memoryview(array.reshape(-1)).cast("B") if array.size else b"")
        stream.flush()
        os.fsync(stream.fileno())


def read_tensors(path, mmap=False):
    """Read arrays and text, as dicts by name, that `write_tensors` has written.

    A ValueError says what is wrong with them. `mmap` maps large arrays into memory, for
    reading only, instead of loading them.
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
        _check_text(text)
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
    array = np.ascontiguousarray(array)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _parse(data):
    try:
        parsed = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError("its header cannot be read") from error
    if not isinstance(parsed, dict):
        raise ValueError("section 'header' is invalid")
    return parsed


def _check_text(text):
    if not isinstance(text, dict) or not all(isinstance(x, str) for x in text.values()):
        raise ValueError("section 'header' is invalid")


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
    flat = np.ascontiguousarray(array).reshape(-1)
    return zlib.crc32(
        memoryview(flat).cast("B") if flat.size else b"", zlib.crc32(kind)
    )


def _check_sum(sums, name, found):
    if sums.get(name) != found:
        raise ValueError(f"the checksum of {name} is wrong: the file is damaged")
