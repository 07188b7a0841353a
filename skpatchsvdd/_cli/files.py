"""Images on a disk, for the command line."""

import functools
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from skpatchsvdd._images import check_image_size, find_files, read_display, read_shape
from skpatchsvdd.datasets import load_images

# What an inspection writes: a table, and beside it a folder of pictures.
TABLE, MAPS = "results.csv", "maps"
COLUMNS = ("file", "verdict", "score", "p_value", "n_regions", "regions", "map")
# How the table is encoded, and names that are no text in it.
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}
# How often a watched folder is looked at.
_WATCH_SECONDS = 1.0
_HALF_WHITE = 127
# Size of images that do not have one in common.
_COMMON_SIZE = 256
# Files that a line names, at most.
_N_NAMED = 5


def find_images(sources, strict, est=None):
    """Return the paths of images, each once.

    Those that are broken, or not of the size that a model takes, are named and passed
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what is skipped is told below
        data = load_images(sources, on_error="skip", as_paths=True)
    by_name, broken = [], []
    for file, reason in data.skipped:
        if reason.startswith("its name"):
            by_name.append(file)
        else:
            broken.append(reason)
    once = {}
    for file in data.filenames:
        once.setdefault(os.path.realpath(file), file)
    fits, misfits = _part_by_size(_without_drawn(once.values()), est)
    _pass_over(broken + misfits, strict)
    if by_name:
        names = ", ".join(by_name[:_N_NAMED])
        names += ", ..." if len(by_name) > _N_NAMED else ""
        print(
            f"skipped: {len(by_name)} files that are no images by name: {names}",
            file=sys.stderr,
        )
    if not fits:
        raise ValueError("there is no image left to look at.")
    return fits


def _pass_over(reasons, strict):
    """Say what is skipped, or raise."""
    if reasons and strict:
        lines = "\n  ".join(reasons)
        raise ValueError(f"--strict ends at what would be skipped:\n  {lines}")
    for reason in reasons:
        print(f"skipped: {reason}", file=sys.stderr)


def _without_drawn(files):
    """Return the files that do not lie in the folder of maps beside a table."""
    holds_drawn = functools.cache(
        lambda folder: folder.name == MAPS and is_table(folder.parent / TABLE)
    )
    return [x for x in files if not holds_drawn(Path(x).absolute().parent)]


def is_table(path):
    """Whether a file is the table of an inspection."""
    if not path.is_file():
        return False
    with path.open(**TEXT) as stream:
        return stream.readline().rstrip("\r\n") == ",".join(COLUMNS)


def check_sizes(files, est):
    """Raise if a model does not take all of some files."""
    _, misfits = _part_by_size(files, est)
    if misfits:
        raise ValueError(misfits[0])


def _part_by_size(files, est):
    """Return the files that a model takes, and why it does not take the others."""
    if est is None or est.image_size is not None:
        return list(files), []
    fits, misfits = [], []
    height, width, _ = est.inspected_shape_
    for file in files:
        size = read_shape(file)[:2]
        if size == (height, width):
            fits.append(file)
        else:
            misfits.append(
                f"{file} has {size[0]} x {size[1]} pixels, and the model takes images "
                f"of {height} x {width}: fit with --image-size makes one for all sizes."
            )
    return fits, misfits


def watch_folder(folder, est):
    """Yield lists of the images that arrive in a folder, until interrupted.

    Those that are there at the start come first. A file is waited for as long as it
    grows; one that cannot be inspected is named and passed over.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to watch.")
    print(f"watching {folder}; Ctrl-C ends it", flush=True)
    done, sizes = set(), {}
    try:
        while True:
            found = {x: _size_of(x) for x in _without_drawn(find_files(folder)[0])}
            whole = [
                x
                for x, size in found.items()
                if x not in done and size is not None and sizes.get(x) == size
            ]
            done.update(whole)
            if whole:
                yield from _read_arrived(sorted(whole), est)
            sizes = found
            time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        print()


def _size_of(file):
    """Return the bytes of a file, or None if it is no longer there."""
    try:
        return file.stat().st_size
    except OSError:
        return None


def _read_arrived(files, est):
    """Yield the list of those of some new files that can be inspected, if any can."""
    try:
        yield find_images(files, strict=False, est=est)
    except (FileNotFoundError, ValueError) as error:
        print(f"skipped: {error}", file=sys.stderr)


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
