"""Maps of an inspection as files: pictures to look at, numbers and masks."""

import io
import re
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.table import writing
from skpatchsvdd._report import save_sheet

# The folders of maps and of masks with numbered regions, beside a table.
MAPS, MASKS = DRAWN = ("maps", "masks")
# What can be saved of a map, and how the names of such files end.
KINDS = {"overlay": ".png", "npy": ".npy", "png": ".map.png", "mask": ".mask.png"}
# The grey value, of 65535, of a pixel at the threshold.
_AT_THRESHOLD = 10_000
_TINY = 1e-12  # instead of a threshold of 0
# Bytes of an image's name in that of its map.
_LONGEST_NAME = 200
_NUMBERED = re.compile(r"(\d{5,})_")


def in_thresholds(maps, est):
    """Return maps in units of the threshold of an estimator."""
    return maps / max(-est.offset_, _TINY)


def save_maps(files, results, est, image=None, pairs=()):
    """Save what was found in one image, `results`, as `files` of some `KINDS`."""
    for kind, file in files.items():
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            _save(kind, file, results, est, image, pairs)


def _save(kind, file, results, est, image, pairs):
    from PIL import Image

    one_map, mask = results.maps[0], results.masks[0]
    if kind == "overlay":
        relative = in_thresholds(one_map, est)
        save_sheet(file, image, relative, mask, results.regions[0], pairs)
    elif kind == "npy":
        np.save(file, one_map)
    elif kind == "png":
        file.write_bytes(encode_grey(one_map, est))
    else:
        Image.fromarray(np.where(mask, 255, 0).astype(np.uint8)).save(file)


def encode_grey(one_map, est):
    """Return a map as a PNG of 16 bits of grey, in which the threshold is 10000."""
    from PIL import Image

    values = np.clip(_AT_THRESHOLD * in_thresholds(one_map, est), 0, 65535)
    stream = io.BytesIO()
    Image.fromarray(values.round().astype(np.uint16)).save(stream, "PNG")
    return stream.getvalue()


def name_maps(folder, number, file, kinds):
    """Return the maps of a file by their kind: its number, and what a name may hold."""
    name = _number(number, file)
    return {x: folder / MAPS / f"{name}{KINDS[x]}" for x in kinds}


def name_mask(folder, number, file):
    """Return the mask with the numbered regions of a file, named as its maps are."""
    return folder / MASKS / f"{_number(number, file)}.png"


def _number(number, file):
    stem = "".join(x if x.isprintable() and x != ";" else "_" for x in Path(file).stem)
    stem = stem.encode("utf-8")[:_LONGEST_NAME].decode("utf-8", "ignore")
    return f"{number:05d}_{stem}"


def remove_maps(folder, first):
    """Remove the maps, from a number on, of a former or of an unfinished inspection."""
    endings = tuple(KINDS.values())
    drawn = [folder / name for name in DRAWN if (folder / name).is_dir()]
    for file in [file for x in drawn for file in x.iterdir()]:
        numbered = _NUMBERED.match(file.name)
        if numbered and int(numbered[1]) >= first and file.name.endswith(endings):
            file.unlink()
