"""Maps of an inspection as files: pictures to look at, numbers and masks."""

import re
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.table import writing
from skpatchsvdd._report import save_overlay

# The folder of maps, beside a table.
MAPS = "maps"
# What can be saved of a map, and how the names of such files end.
KINDS = {
    "overlay": ".png",
    "npy": ".npy",
    "png": ".map.png",
    "mask": ".mask.png",
}
# The grey value, of 65535, of a pixel at the threshold.
_AT_THRESHOLD = 10_000
_WHITE = 255
_TINY = 1e-12  # instead of a threshold of 0
# Bytes of an image's name in that of its map.
_LONGEST_NAME = 200
_NUMBERED = re.compile(r"(\d{5,})_")


def in_thresholds(maps, est):
    """Return maps in units of the threshold of an estimator."""
    return maps / max(-est.offset_, _TINY)


def save_maps(start, kinds, image, one_map, mask, est):
    """Save a map in some kinds of files.

    Parameters
    ----------
    start : Path
        How the names of the files begin; see `name_maps`.
    kinds : list of str
        Of `KINDS`.
    image : ndarray of uint8 of shape (height, width, 3) or None
        The image, which only "overlay" shows; that is left out if it is None.
    one_map : ndarray of shape (height, width)
        The anomaly map.
    mask : ndarray of bool of shape (height, width)
        True at abnormal pixels.
    est : PatchSVDD
        Fitted.

    Returns
    -------
    files : list of Path
        Those that were written.
    """
    kinds = [x for x in kinds if x != "overlay" or image is not None]
    if kinds:
        with writing(start.parent):
            start.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for kind in kinds:
        file = start.with_name(start.name + KINDS[kind])
        with writing(file):
            _SAVERS[kind](file, image, one_map, mask, est)
        files.append(file)
    return files


def _save_overlay(file, image, one_map, mask, est):
    save_overlay(image, in_thresholds(one_map, est), file)


def _save_numbers(file, image, one_map, mask, est):
    np.save(file, one_map)


def _save_grey(file, image, one_map, mask, est):
    values = np.clip(_AT_THRESHOLD * in_thresholds(one_map, est), 0, 65535)
    _save_picture(file, values.round().astype(np.uint16))


def _save_mask(file, image, one_map, mask, est):
    _save_picture(file, np.where(mask, _WHITE, 0).astype(np.uint8))


def _save_picture(file, pixels):
    from PIL import Image

    Image.fromarray(pixels).save(file)


_SAVERS = {
    "overlay": _save_overlay,
    "npy": _save_numbers,
    "png": _save_grey,
    "mask": _save_mask,
}


def name_maps(folder, number, file):
    """Return how the names of the maps of a file begin: number, and part of its name.

    What could not be written, printed or parted in a table becomes an underscore.
    """
    stem = "".join(x if x.isprintable() and x != ";" else "_" for x in Path(file).stem)
    stem = stem.encode("utf-8")[:_LONGEST_NAME].decode("utf-8", "ignore")
    return folder / MAPS / f"{number:05d}_{stem}"


def remove_maps(folder, first):
    """Remove the maps, from a number on, of a former or of an unfinished inspection."""
    if not (folder / MAPS).is_dir():
        return
    endings = tuple(KINDS.values())
    for file in (folder / MAPS).iterdir():
        numbered = _NUMBERED.match(file.name)
        if numbered and int(numbered[1]) >= first and file.name.endswith(endings):
            file.unlink()
