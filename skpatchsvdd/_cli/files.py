"""Images and models on a disk, for the command line."""

import pickle
import sys
import time
from collections import Counter
from pathlib import Path

import joblib

from skpatchsvdd._images import check_image_size, read_display, read_shape
from skpatchsvdd._patch_svdd import PatchSVDD, load
from skpatchsvdd._storage import is_model_file
from skpatchsvdd._utils import replaced_when_whole
from skpatchsvdd.datasets import load_images

# How often a watched folder is looked at.
_WATCH_SECONDS = 1.0
_HALF_WHITE = 127
_PICKLES = (".joblib", ".pkl", ".pickle")
# Size of images that do not have one in common.
_COMMON_SIZE = 256


def find_images(sources, strict):
    """Return the paths of images; those that are broken are warned about, or end it."""
    data = load_images(sources, on_error="raise" if strict else "skip", as_paths=True)
    n_others = sum(reason.startswith("its name") for _, reason in data.skipped)
    if n_others:
        print(f"skipped: {n_others} files that are no images by name", file=sys.stderr)
    return data.filenames


def watch_folder(folder):
    """Yield lists of the images that arrive in a folder, until interrupted.

    Those that are there at the start come first. A file is waited for as long as it
    grows; one that cannot be read is named and passed over.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to watch.")
    print(f"watching {folder}; Ctrl-C ends it", flush=True)
    done, sizes = set(), {}
    try:
        while True:
            found = {
                x: x.stat().st_size for x in Path(folder).rglob("*") if x.is_file()
            }
            whole = [x for x in found if x not in done and sizes.get(x) == found[x]]
            done.update(whole)
            if whole:
                yield from _read_arrived(sorted(whole))
            sizes = found
            time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        print()


def _read_arrived(files):
    """Yield the list of those of some new files that can be read, if there are any."""
    try:
        data = load_images(files, on_error="skip", as_paths=True)
    except ValueError as error:
        print(f"skipped: {error}", file=sys.stderr)
    else:
        yield data.filenames


def choose_size(files, given):
    """Return the size that images are resized to, or None to leave them as they are."""
    if given is not None:
        if len(given) > 2:
            raise ValueError(
                f"--image-size takes one number, or height and width, got {given}."
            )
        return check_image_size(given[0] if len(given) == 1 else tuple(given))
    sizes = Counter(read_shape(file)[:2] for file in files)
    if len(sizes) == 1:
        return None
    print(
        f"images have {len(sizes)} sizes: all are resized to {_COMMON_SIZE} x "
        f"{_COMMON_SIZE}. Pass --image-size for another one."
    )
    return _COMMON_SIZE, _COMMON_SIZE


def save_model(est, path):
    """Save a model; the file is the former one or the new one, never half of it.

    A name that ends as those of pickles do gets one, any other a file of `est.save`.
    """
    if Path(path).suffix in _PICKLES:
        with replaced_when_whole(path) as partial:
            joblib.dump(est, partial)
    else:
        est.save(path)


def load_model(path, device=None):
    """Load a model that the command line has saved."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no model {path}.")
    if is_model_file(path):
        est = load(path)
        return est if device is None else est.set_params(device=device)
    try:
        est = joblib.load(path)
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no model: {error}") from error
    if not isinstance(est, PatchSVDD):
        raise ValueError(f"{path} holds a {type(est).__name__}, not a PatchSVDD.")
    return est if device is None else est.set_params(device=device)


def read_roi(file):
    """Read a mask of what to inspect, black where nothing matters, or None."""
    if file is None:
        return None
    mask = read_display(file).max(axis=2)
    return mask > _HALF_WHITE  # a JPEG is not quite black, nor quite white
