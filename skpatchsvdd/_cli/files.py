"""Finding the images that a command is given, and whether a model takes them."""

import functools
import os
from pathlib import Path

from skpatchsvdd._cli.maps import MAPS
from skpatchsvdd._cli.table import TABLE, is_table
from skpatchsvdd._cli.text import ListedError, count, tell
from skpatchsvdd._images import find_all_files, read_image, read_shape
from skpatchsvdd._utils import Report

# To whatever size an image is resized: all of it is read, and nothing looked at.
_ANY_SIZE = (1, 1)
# Files that a line names, at most.
_N_NAMED = 5


def find_images(sources, strict, est=None):
    """Return the paths of images in folders, each once, all of which can be read.

    Those that are broken, or not of the shape that a model takes, are named and passed
    over, or with `strict` are an error. Pictures that an inspection has drawn are no
    images.
    """
    files, unreadable, others = list_files(sources)
    fits, reasons = [], [reason for _, reason in unreadable]
    with Report("PatchSVDD", 1).side_progress("reading files", len(files)) as progress:
        for i, file in enumerate(files):
            if reason := _find_fault(file, est):
                reasons.append(reason)
            else:
                fits.append(file)
            progress(i + 1)
    tell_skipped(reasons, strict)
    tell_others(others)
    if not fits:
        raise ValueError("no image is left that can be used.")
    return fits


def tell_skipped(reasons, strict):
    """Say what is skipped, and why, or with `strict` raise if anything is."""
    if reasons and strict:
        raise ListedError("--strict ends at what would be skipped:", reasons)
    for reason in reasons:
        tell(f"skipped: {reason}")


def list_files(sources):
    """List image files, each once, by their names alone, sorted within a folder.

    Also what cannot be looked at, links to nothing among them, each with why, and the
    files without the name of an image format.
    """
    files, others, unreadable = find_all_files(sources)
    once = {}
    for file in without_drawn(files):
        once.setdefault(os.path.realpath(file), str(file))
    return list(once.values()), unreadable, others


def tell_others(others):
    """Say which files lack the name of an image format, if there are any."""
    if others:
        names = ", ".join(map(str, others[:_N_NAMED]))
        names += ", ..." if len(others) > _N_NAMED else ""
        n_files = count(len(others), "file")
        tell(f"skipped: {n_files} without the name of an image format: {names}")


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
    return find_misfit(file, shape, est)


def read_fitting(file, est):
    """Read the shape of a file, and why a model does not take it, or None.

    Only the beginning of the file is read: its pixels may be broken nevertheless.
    """
    try:
        shape = read_shape(file)
    except (OSError, ValueError) as error:
        return (0, 0, 0), str(error)
    return shape, find_misfit(file, shape, est)


def make_folder(path):
    """Make the folder that -o names, or say why it cannot be; return its path."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        taken = next(x for x in (folder, *folder.parents) if x.exists())
        raise ValueError(
            f"-o must name a folder to write to, and {taken} is a file. Pass another "
            "name."
        ) from error
    return folder


def check_sizes(files, est):
    """Raise if a model does not take all of some files."""
    for file in files:
        if reason := find_misfit(file, read_shape(file), est):
            raise ValueError(reason)


def find_misfit(file, shape, est):
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
