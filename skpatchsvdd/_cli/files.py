"""Images on a disk, for the command line."""

import functools
import hashlib
import os
from collections import Counter
from pathlib import Path

from skpatchsvdd._cli.maps import MAPS
from skpatchsvdd._cli.table import TABLE, is_table
from skpatchsvdd._cli.text import ListedError, tell
from skpatchsvdd._images import (
    check_image_size,
    find_all_files,
    read_display,
    read_image,
    read_shape,
)

_HALF_WHITE = 127
# Size of images that do not have one in common.
_COMMON_SIZE = 256
# To whatever size an image is resized: all of it is read, and nothing looked at.
_ANY_SIZE = (1, 1)
# Files that a line names, at most.
_N_NAMED = 5
# Bytes of a state: two of a million differ, but for a chance of one in 30 million.
_N_STATE = 8


def find_images(sources, strict, est=None):
    """Return the paths of images, each once, all of which can be read.

    Those that are broken, or not of the shape that a model takes, are named and passed
    over, or with `strict` are an error. Pictures that an inspection has drawn are no
    images.

    Parameters
    ----------
    sources : list of str
        Folders and files.
    strict : bool
        Whether to end there.
    est : PatchSVDD or None
        The model.
    """
    files, unreadable, others = list_images(sources)
    fits, reasons = [], [reason for _, reason in unreadable]
    for file in files:
        reason = _find_fault(file, est)
        if reason is None:
            fits.append(file)
        else:
            reasons.append(reason)
    if reasons and strict:
        raise ListedError("--strict ends at what would be skipped:", reasons)
    for reason in reasons:
        tell(f"skipped: {reason}")
    tell_others(others)
    if not fits:
        raise ValueError("there is no image left to look at.")
    return fits


def list_images(sources):
    """List image files, each once, by their names alone.

    Returns
    -------
    files : list of str
        In the order of the sources, sorted within a folder.
    unreadable : list of (str, str)
        What cannot be looked at, links to nothing among them, and why.
    others : list of Path
        Files that are no images by name.
    """
    files, others, unreadable = find_all_files(sources)
    once = {}
    for file in without_drawn(files):
        once.setdefault(os.path.realpath(file), str(file))
    return list(once.values()), unreadable, others


def tell_others(others):
    """Say which files are no images by name, if there are any."""
    if others:
        names = ", ".join(map(str, others[:_N_NAMED]))
        names += ", ..." if len(others) > _N_NAMED else ""
        tell(f"skipped: {len(others)} files that are no images by name: {names}")


def without_drawn(files):
    """Return the files that do not lie in the folder of maps beside a table."""
    holds_drawn = functools.cache(
        lambda folder: folder.name == MAPS and is_table(folder.parent / TABLE)
    )
    return [x for x in files if not holds_drawn(Path(x).absolute().parent)]


def _find_fault(file, est):
    """Return why a file cannot be used, all of which is read, or None."""
    try:
        shape = read_shape(file)
        read_image(file, size=_ANY_SIZE)
    except (OSError, ValueError) as error:
        return str(error)
    return _find_misfit(file, shape, est)


def read_fitting(file, est):
    """Read the shape of a file, and why a model does not take it, or None.

    Only the beginning of the file is read: its pixels may be broken nevertheless.
    """
    try:
        shape = read_shape(file)
    except (OSError, ValueError) as error:
        return (0, 0, 0), str(error)
    return shape, _find_misfit(file, shape, est)


def check_sizes(files, est):
    """Raise if a model does not take all of some files."""
    for file in files:
        if reason := _find_misfit(file, read_shape(file), est):
            raise ValueError(reason)


def _find_misfit(file, shape, est):
    """Return why a model does not take an image of a shape, or None if it does."""
    if est is None:
        return None
    height, width, n_channels = est.inspected_shape_
    if est.image_size is None and tuple(shape[:2]) != (height, width):
        return (
            f"{file} has {shape[0]} x {shape[1]} pixels, and the model takes images "
            f"of {height} x {width}: fit with --image-size makes one for all sizes."
        )
    if shape[2] > 1 and shape[2] != n_channels:
        return (
            f"{file} is coloured, and the model was fitted to grey images: save it "
            "without colour, or fit to coloured ones."
        )
    return None


def find_state(file):
    """Return a number for a file's name, size and time of change, or None if gone.

    The name is that from the root on, links to folders followed: the same file has the
    same state from wherever it is looked at.
    """
    return find_states([file])[file]


def find_states(files):
    """Return the state of each of some files."""
    real_path = functools.cache(os.path.realpath)
    return {file: _find_state(file, real_path) for file in files}


def _find_state(file, real_path):
    folder, name = os.path.split(file)
    try:
        found = os.stat(file)
    except OSError:
        return None
    path = os.path.join(real_path(folder), name)
    text = os.fsencode(f"{found.st_size}/{found.st_mtime_ns}/{path}")
    return int.from_bytes(hashlib.blake2b(text, digest_size=_N_STATE).digest(), "big")


def choose_size(files, given):
    """Return the size that images are resized to, or None to leave them as they are."""
    if given is not None:
        return check_image_size(given)
    sizes = Counter(read_shape(file)[:2] for file in files)
    if len(sizes) == 1:
        return None
    print(
        f"images have {len(sizes)} sizes: all are resized to {_COMMON_SIZE} x "
        f"{_COMMON_SIZE}. Pass --image-size for another one."
    )
    return _COMMON_SIZE, _COMMON_SIZE


def read_roi(file):
    """Read a mask of what to inspect, black where nothing matters, or None."""
    if file is None:
        return None
    mask = read_display(file).max(axis=2)
    return mask > _HALF_WHITE  # a JPEG is not quite black, nor quite white
