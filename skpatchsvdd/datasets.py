"""Images to learn from: folders on a disk, and synthetic ones."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.utils import Bunch

from skpatchsvdd._images import (
    ENDINGS,
    check_image_size,
    find_all_files,
    pixels_to_float,
    read_image,
    resize_image,
)
from skpatchsvdd._synthetic import make_textures
from skpatchsvdd._utils import safe_after_fork, warn

__all__ = ["load_images", "load_mvtec_ad", "make_textures"]

_GOOD = "good"
_ANY_SIZE = (1, 1)
# Files that a message names, at most.
_N_NAMED = 20


def load_images(
    source, *, image_size=None, on_error="raise", as_paths=False, max_pixels=None
) -> Bunch:
    """Load images from a folder and all folders below it, or from a list of files.

    Reading files needs pillow: ``pip install pillow``.

    Parameters
    ----------
    source : str, path, or list of these
        A folder, a file, or a list of folders and files. Hidden files are passed over.
    image_size : int or (int, int), default=None
        Size (height, width) to which images are resized, anti-aliased.
    on_error : {"raise", "skip"}, default="raise"
        Whether files that cannot be read end the loading, with an error that names all
        of them, or are skipped, with a warning.
    as_paths : bool, default=False
        True returns paths instead of pixels. Every file is decoded once in any case,
        so that broken ones are found.
    max_pixels : int, default=None
        How many pixels an image may have: one with more is not decoded, since a small
        file can hold more than any memory, and counts as one that cannot be read. None
        means 100 million, or what ``PIL.Image.MAX_IMAGE_PIXELS`` has been set to; of
        twice that pillow itself opens no file.

    Returns
    -------
    data : Bunch
        With these attributes:

        images : ndarray of shape (n_images, height, width[, 3]), or list
            uint8 or uint16; float32 on the 0..1 scale for files of floats, and where
            some have 8 and some 16 bits. Grey images have no channel axis, unless some
            are coloured. A list for images of unequal size; paths with
            ``as_paths=True``.
        filenames : list of str
            Where each image was read from, sorted by name within a folder.
        skipped : list of (str, str)
            Files that are not among them, and why.

    Examples
    --------
    >>> from skpatchsvdd.datasets import load_images
    >>> good = load_images("photos/good", image_size=256)  # doctest: +SKIP
    """
    size = _check_options(on_error, image_size, as_paths)
    files, skipped, broken = _find_files(source)

    def read(file):
        if not as_paths:
            return _read_resized(file, size, max_pixels)
        read_image(file, max_pixels, _ANY_SIZE)  # what size it has is for others to say
        return str(file)

    images, kept, unread = _read_each(read, files)
    broken += unread
    _tell_broken(broken, len(kept) + len(broken), on_error)
    return Bunch(
        images=images if as_paths else _make_alike(images),
        filenames=[str(files[i]) for i in kept],
        skipped=skipped + broken,
    )


def _read_each(read, files, *more):
    """Read files as ``read(file, ...)`` does.

    Returns what could be read, the indices of these files, and pairs (file, reason) of
    all others.
    """
    found, kept, broken = [], [], []
    for i, (file, *others) in enumerate(zip(files, *more, strict=True)):
        try:
            found.append(read(file, *others))
        except (OSError, ValueError) as error:
            broken.append((str(file), str(error)))
        else:
            kept.append(i)
    return found, kept, broken


def _check_options(on_error, image_size, as_paths):
    """Check options that loaders share; return the size as (height, width) or None."""
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}.")
    if as_paths and image_size is not None:
        raise ValueError(
            "image_size has no effect with as_paths=True, which returns no pixels. "
            "Pass PatchSVDD(image_size=...) instead."
        )
    return check_image_size(image_size)


def _tell_broken(broken, n_files, on_error):
    """Raise, or warn, if some files cannot be read; raise if there are no others."""
    if not broken:
        return
    found = f"{len(broken)} of {n_files} files cannot be read as images"
    lines = [f"  {reason}" for _, reason in broken[:_N_NAMED]]
    if len(broken) > _N_NAMED:
        lines.append(f"  and {len(broken) - _N_NAMED} more")
    reasons = "\n".join(lines)
    if len(broken) == n_files:
        raise ValueError(f"{found}, and there are no others:\n{reasons}")
    if on_error == "raise":
        raise ValueError(f"{found}. Remove them, or pass on_error='skip':\n{reasons}")
    warn(f"{found} and were skipped:\n{reasons}")


def _find_files(source):
    """Return the image files of folders and lists, others, and what cannot be read."""
    is_one = isinstance(source, str | os.PathLike)
    if not is_one and not isinstance(source, Iterable):
        raise TypeError(
            f"source must be a folder, a file or a list of these, got {source!r}."
        )
    sources = [source] if is_one else list(source)
    if not sources:
        raise ValueError("source is empty. Pass a folder, or files.")
    files, others, broken = find_all_files(sources)
    reason = "its name does not end as an image's does"
    return files, [(str(file), reason) for file in others], broken


def load_mvtec_ad(
    root,
    category=None,
    split="train",
    *,
    image_size=None,
    on_error="raise",
    as_paths=False,
    max_pixels=None,
) -> Bunch:
    """Load images from a folder in the layout of MVTec AD, or from a plain folder.

    The layout is ``train/good``, ``test/good``, ``test/DEFECT`` and
    ``ground_truth/DEFECT/NAME_mask.png``. A folder that holds images and neither
    ``train`` nor ``test`` is read as normal images. Reading files needs pillow:
    ``pip install pillow``.

    Parameters
    ----------
    root : str or path
        Folder of the data set, or of the images.
    category : str, default=None
        Folder below `root`, such as "bottle". None is `root` itself.
    split : {"train", "test"}, default="train"
        Which part. A plain folder has no parts and is read whole.
    image_size, on_error, max_pixels
        As for `load_images`. Masks are resized, and skipped, with their images.
    as_paths : bool, default=False
        True returns the paths of images and masks and reads no file; an estimator
        with ``image_size`` resizes them.

    Returns
    -------
    data : Bunch
        `images`, `filenames` and `skipped` as of `load_images`, and:

        labels : ndarray of shape (n_images,)
            1 for normal images, -1 for abnormal ones.
        masks : ndarray of shape (n_images, height, width), or list, or None
            True at abnormal pixels. None where the data set has no masks.
        defects : ndarray of str of shape (n_images,)
            Name of the defect, "good" for normal images.

    Examples
    --------
    >>> from skpatchsvdd.datasets import load_mvtec_ad
    >>> train = load_mvtec_ad("mvtec_ad", "bottle")  # doctest: +SKIP
    >>> test = load_mvtec_ad("mvtec_ad", "bottle", split="test")  # doctest: +SKIP
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}.")
    size = _check_options(on_error, image_size, as_paths)
    folder = _check_folder(Path(root) if category is None else Path(root, category))
    files, defects = _list_files(folder, split)
    masks = _list_masks(folder, files, defects)
    if as_paths:
        images, skipped = [str(file) for file in files], []
        masks = masks and [mask and str(mask) for mask in masks]
    else:

        def read(file, mask):
            image = _read_resized(file, size, max_pixels)
            return image, _read_mask(mask, image.shape[:2])

        pairs, kept, skipped = _read_each(read, files, masks or [None] * len(files))
        _tell_broken(skipped, len(files), on_error)
        images = _make_alike([image for image, _ in pairs])
        masks = masks and _stack([mask for _, mask in pairs])
        files, defects = ([x[i] for i in kept] for x in (files, defects))
    return Bunch(
        images=images,
        labels=np.array([1 if defect == _GOOD else -1 for defect in defects]),
        masks=masks,
        defects=np.array(defects),
        filenames=[str(file) for file in files],
        skipped=skipped,
    )


def _check_folder(folder):
    if folder.is_dir():
        return folder
    message = f"there is no folder {folder}."
    if folder.parent.is_dir():
        names = sorted(path.name for path in folder.parent.iterdir() if path.is_dir())
        if names:
            here = folder.parent if folder.parent.name else "The current folder"
            message += f" {here} holds {', '.join(names[:20])}."
    raise FileNotFoundError(message)


def _list_files(folder, split):
    """Return the image files of a split and the name of each one's defect."""
    parts = [folder / part for part in ("train", "test") if (folder / part).is_dir()]
    if not parts:
        files = _images_in(folder)
        return files, [_GOOD] * len(files)
    if folder / split not in parts:
        raise FileNotFoundError(f"{folder} has no folder {split!r}.")
    kinds = sorted(
        path
        for path in (folder / split).iterdir()
        if path.is_dir() and not path.name.startswith(".")
    )
    found = [(file, kind.name) for kind in kinds for file in _images_in(kind)]
    if not found:
        raise FileNotFoundError(
            f"{folder / split} holds no folders with images: {split}/good is expected."
        )
    files, defects = zip(*found, strict=True)
    return list(files), list(defects)


def _images_in(folder):
    files = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".")
    ]
    if not files:
        endings = ", ".join(sorted(ENDINGS))
        below = sorted(path.name for path in folder.iterdir() if path.is_dir())
        hint = f" It holds the folders {', '.join(below[:20])}." if below else ""
        raise FileNotFoundError(f"{folder} holds no images ({endings}).{hint}")
    return sorted(files)


def _list_masks(folder, files, defects):
    """Return the mask file of each image, None for normal ones, or None for all."""
    truth = folder / "ground_truth"
    if not truth.is_dir() and set(defects) != {_GOOD}:
        return None
    masks = []
    for file, defect in zip(files, defects, strict=True):
        mask = truth / defect / f"{file.stem}_mask.png"
        if defect != _GOOD and not mask.is_file():
            raise FileNotFoundError(f"{file} has no mask {mask}.")
        masks.append(None if defect == _GOOD else mask)
    return masks


def _make_alike(images):
    """Give images the same channels and the same type; stack them if they fit."""
    if len({image.ndim for image in images}) > 1:  # grey among colour
        images = [x if x.ndim == 3 else np.stack([x] * 3, axis=2) for x in images]
    if len({image.dtype for image in images}) > 1:
        images = [pixels_to_float(image) for image in images]
    return _stack(images)


def _read_resized(file, size, max_pixels):
    """Read one image, and resize it if there is a size; it keeps its dtype."""
    image = read_image(file, max_pixels, size)
    if size is None:
        return image
    x = image.astype(np.float32)
    x = resize_image(x if x.ndim == 3 else x[:, :, None], size)
    if image.dtype.kind == "u":
        x = x.round().clip(0, np.iinfo(image.dtype).max)
    return x.astype(image.dtype).reshape(*size, *image.shape[2:])


@safe_after_fork
def _read_mask(file, size):
    """Read a mask; that of a normal image, None, is empty."""
    if file is None:
        return np.zeros(size, dtype=bool)
    mask = read_image(file)
    mask = (mask if mask.ndim == 2 else mask.max(axis=2)) > 0
    if mask.shape == tuple(size):
        return mask
    x = torch.from_numpy(mask.astype(np.float32))[None, None]
    return F.interpolate(x, tuple(size), mode="nearest-exact")[0, 0].numpy() > 0


def _stack(arrays):
    """One array of all, or the list where they differ in size."""
    return np.stack(arrays) if len({x.shape for x in arrays}) == 1 else arrays
