"""The images that a command is given: what is found, and whether a model takes them."""

import functools
import hashlib
import os
import re
import stat
from pathlib import Path

from skpatchsvdd._cli.maps import DRAWN
from skpatchsvdd._cli.table import TABLE, is_table
from skpatchsvdd._cli.terminal import ListedError, count, tell
from skpatchsvdd._images import ENDINGS, find_all_files, read_image, read_shape
from skpatchsvdd._utils import Report

# To whatever size an image is resized: all of it is read, and nothing looked at.
_ANY_SIZE = (1, 1)
# Files that a line names, at most.
_N_NAMED = 5
# Bytes of a state: two of a million differ, but for a chance of one in 30 million.
_N_STATE = 8
# Folders of a data set that is made for evaluation. Two of them tell it from others.
_DATA_SET = ("train", "test", "ground_truth")
# What folders of good and of defective images are called, in small letters.
_GOOD_NAMES = {"good", "ok", "io", "normal", "pass", "passed", "healthy", "intact"}
_DEFECTIVE_NAMES = {
    *("defective", "defectives", "defect", "defects", "bad", "ng", "nok", "nio"),
    *("not_ok", "not_good", "no_good", "anomaly", "anomalies", "anomalous", "abnormal"),
    *("broken", "damaged", "faulty", "fault", "faults", "fail", "failed", "failure"),
    *("reject", "rejects", "rejected", "scrap"),
}


def find_images(sources, strict, est=None):
    """Return the paths of images in folders, each once, all of which can be read.

    What is broken, or not of the shape that a model takes, is named and skipped, or
    with `strict` an error.
    """
    files, unreadable, others = list_files(sources)
    fits, reasons = [], [reason for _, reason in unreadable]
    with Report("PatchSVDD", 1).side_progress("reading files", len(files)) as progress:
        for i, file in enumerate(files):
            _, reason = read_fitting(file, est, decodes=True)
            if reason:
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

    Also what cannot be read, each with the reason, and files of other formats.
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
        lambda folder: folder.name in DRAWN and is_table(folder.parent / TABLE)
    )
    return [x for x in files if not holds_drawn(Path(x).absolute().parent)]


def read_fitting(file, est, decodes=False):
    """Read the shape of a file, and why it cannot be used with a model, or None.

    Unless it `decodes` the file, its pixels may be broken nevertheless.
    """
    try:
        shape = read_shape(file)
        if decodes:
            read_image(file, size=_ANY_SIZE)
    except (OSError, ValueError) as error:
        return (0, 0, 0), str(error)
    return shape, find_misfit(file, shape, est)


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


def find_state(file, real_path=os.path.realpath):
    """Return a number for a file's name, size and time of change, or None if gone.

    It is the same from wherever the file is looked at: links to folders are followed.
    """
    folder, name = os.path.split(file)
    try:
        found = os.stat(file)
    except OSError:
        return None
    path = os.path.join(real_path(folder), name)
    size, changed = found.st_size, found.st_mtime_ns
    if not stat.S_ISREG(found.st_mode):  # a pipe, which changes when it is used
        size = changed = 0
    text = os.fsencode(f"{size}/{changed}/{path}")
    return int.from_bytes(hashlib.blake2b(text, digest_size=_N_STATE).digest(), "big")


def find_states(files):
    """Return the state of each of some files."""
    real_path = functools.cache(os.path.realpath)
    return {file: find_state(file, real_path) for file in files}


def check_layout(sources):
    """Raise if folders hold defective images, or masks, that would be learnt."""
    siblings = {}
    for source in filter(os.path.isdir, sources):
        path = Path(os.path.abspath(source))
        siblings.setdefault(path.parent, []).append(path.name)
        for parent, folders, names in _walk(source):
            has_images = any(Path(x).suffix.lower() in ENDINGS for x in names)
            _check_names(Path(parent), folders, has_images)
    for parent, names in siblings.items():
        _check_names(parent, names, False)
    harm = "defective images, or masks, would be learnt as normal ones"
    check_data_set(sources, harm, ("train/good", "train", "test/good"))


def _check_names(parent, names, has_images):
    """Raise if, by their names, a folder of defective images is beside good ones."""
    plain = {x: re.sub(r"[\W_]+", "_", x.lower()) for x in sorted(names)}
    good = [x for x in plain if plain[x] in _GOOD_NAMES]
    defective = [x for x in plain if plain[x] in _DEFECTIVE_NAMES]
    if defective and (good or has_images):
        beside = f"{good[0]}/" if good else "images"
        passed = parent / good[0] if good else "a folder of the good ones"
        raise ValueError(
            f"{parent} holds {beside} and {defective[0]}/: defective images would be "
            f"learnt as normal ones. Pass {passed} alone instead."
        )


def check_data_set(sources, harm, wanted):
    """Raise if folders hold a data set as a whole; name the `wanted` part, if there."""
    for source in sources:
        for parent, folders, _ in _walk(source):
            found = [x for x in _DATA_SET if x in folders]
            if len(found) > 1:
                parts = (Path(parent, x) for x in wanted)
                part = next(filter(Path.is_dir, parts), "the folders of images alone")
                raise ValueError(
                    f"{parent} holds {' and '.join(f'{x}/' for x in found)}, as MVTec "
                    f"AD's layout has them: {harm}. Pass {part} instead."
                )


def _walk(source):
    """Walk a folder and all below it, but for those that are hidden."""
    for parent, folders, names in os.walk(source):
        folders[:] = [x for x in folders if not x.startswith(".")]
        yield parent, folders, names
