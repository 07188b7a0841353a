"""Reviews: what people say of the images of a page, saved by it as one small file."""

import hashlib
import json
import os
import re
from collections import Counter
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from skpatchsvdd._images import NORMAL_NAMES, UNKNOWN_KIND
from skpatchsvdd._utils import open_regular

FORMAT, VERSION = "skpatchsvdd-review", 1
GOOD, DEFECTIVE = "good", "defective"
# Longest name of a kind of defects, and names that mean something else elsewhere.
_LONGEST_KIND = 80
_NO_KINDS = (*NORMAL_NAMES, UNKNOWN_KIND, "nan", "inf", "infinity")
_DIGEST_BYTES = 16
# Bytes of a review, at most: some hundreds for each image. More is another file.
_LARGEST = 2**28
_WAY_OUT = 'Pass the file that "Save review" of a report has saved.'
_KEYS = {"format", "version", "model", "folder", "images"}
_IMAGE_KEYS = {"file", "verdict", "kind", "boxes", "digest", "similar"}


class ReviewedImage(NamedTuple):
    """What a review says of one image.

    Boxes are top, left, bottom and right of where it is defective, the latter two
    outside.
    """

    file: str  # below the folder of the review, with strokes
    verdict: str  # `GOOD` or `DEFECTIVE`
    kind: str | None  # the name of the kind of defect
    boxes: list  # empty if nobody said
    digest: str | None  # what `digest_file` gave for the file that was inspected
    similar: bool = False  # whether, if it is good, so is what looks like it


class Review(NamedTuple):
    """All that a review says."""

    model: str | None  # what `fingerprint` gave for the model of the report
    folder: str | None  # that all images are in, where they were inspected
    images: list  # of ReviewedImage


def digest_file(file):
    """Return text that tells the bytes of a file from those of any other.

    Raises OSError of what is not a regular file: to read a pipe may take for ever.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with open(file, "rb", opener=open_regular) as stream:
        for chunk in iter(partial(stream.read, 2**20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def read_unchanged(file, digest):
    """Return the bytes of a file that still has a digest of `digest_file`, or raise."""
    name = os.path.basename(file)
    if not os.path.isfile(file):
        raise OSError(f"{name} is gone: it was moved or removed.")
    content = Path(file).read_bytes()
    if hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest() != digest:
        raise OSError(f"{name} has changed since it was inspected.")
    return content


def fingerprint(estimator):
    """Return text that names an estimator by its encoder, as `fit` has left it.

    So it is known again when images have joined it, or were forgotten. Models whose
    encoder has learnt nothing, untrained "hierarchical" ones, share a name.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    digest.update(repr(tuple(map(int, estimator.inspected_shape_))).encode())
    for name, values in estimator.encoder_.state_dict().items():
        digest.update(f"/{name}/".encode())
        digest.update(values.cpu().contiguous().numpy())
    return digest.hexdigest()


def make_review(estimator, folder, images):
    """Return a review, as a page saves it, of images in a folder; see `read_review`."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": fingerprint(estimator),
        "folder": folder,
        "images": images,
    }


def read_review(path):
    """Read a `Review`, and raise if anything about it is not as a page saves it."""
    content = _read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(
            f'{path} is not a review: its "format" must be "{FORMAT}". {_WAY_OUT}'
        )
    version = content.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise ValueError(
            f"{path} is a review of version {version!r}, and this release reads "
            f"version {VERSION}. Use the release that wrote the report."
        )
    try:
        return _check_content(content)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error} Save the review again."
        ) from error


def _read_json(path):
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a review. {_WAY_OUT}")
    try:
        n_bytes = path.stat().st_size
        if n_bytes > _LARGEST:
            raise ValueError(f"it has {n_bytes:,} bytes, {_LARGEST:,} are the most")
        return json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no review {path}. The browser has saved it, most often in its "
            "folder of downloads: pass the path of the file there."
        ) from error
    except (ValueError, RecursionError) as error:  # not text, not JSON, or cut off
        raise ValueError(
            f"{path} is not a review: it is not a whole JSON file ({error}). {_WAY_OUT}"
        ) from error


def _check_content(content):
    _check_keys(content, _KEYS, "the review")
    images = content.get("images")
    if not isinstance(images, list) or not images:
        raise ValueError('"images" must be a list of at least one image.')
    checked = [check_reviewed(x, f"image {i}") for i, x in enumerate(images)]
    # One path for all ways to write it, such as a.png for ./a.png.
    files = Counter("/".join(PurePosixPath(x.file).parts) for x in checked)
    [(file, n_verdicts)] = files.most_common(1)
    if n_verdicts > 1:
        raise ValueError(f"{file} has more than one verdict.")
    return Review(
        _check_text(content.get("model"), '"model"'),
        _check_text(content.get("folder"), '"folder"'),
        checked,
    )


def _check_keys(content, known, name):
    if unknown := sorted(set(content) - known):
        raise ValueError(f"{name} has {unknown[0]!r}, which no page writes.")


def _check_text(value, name):
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise ValueError(f"{name} must be text or null, got {value!r}.")
    return value


def check_reviewed(content, name):
    """Return what is said of one image as a `ReviewedImage`, or raise."""
    if not isinstance(content, dict):
        raise ValueError(f"{name} must be an object, got {content!r}.")
    _check_keys(content, _IMAGE_KEYS, name)
    file = _check_file(content.get("file"), name)
    verdict = content.get("verdict")
    if verdict not in (GOOD, DEFECTIVE):
        raise ValueError(
            f'the verdict of {file} must be "{GOOD}" or "{DEFECTIVE}", got {verdict!r}.'
        )
    kind = _check_kind(content.get("kind"), file)
    boxes = _check_boxes(content.get("boxes"), file)
    if verdict == GOOD and (kind is not None or boxes):
        raise ValueError(f"{file} is good, and has a kind of defect or boxes of one.")
    digest = _check_text(content.get("digest"), f"the digest of {file}")
    similar = content.get("similar", False)
    if not isinstance(similar, bool) or (similar and verdict != GOOD):
        raise ValueError(f'"similar" of {file} must be false, or true of a good image.')
    return ReviewedImage(file, verdict, kind, boxes, digest, similar)


def _check_file(file, name):
    """Return a path that lies below a folder, whatever system it is read on."""
    if not isinstance(file, str) or not file or "\0" in file:
        raise ValueError(f'the "file" of {name} must be a path, got {file!r}.')
    kinds = [PurePosixPath(file), PureWindowsPath(file) if os.name == "nt" else None]
    for path in filter(None, kinds):
        if path.anchor or ".." in path.parts:
            raise ValueError(
                f"{file!r} is outside of the folder of images: a path must lead "
                "downwards from it."
            )
    return file


def _check_kind(kind, file):
    _check_text(kind, f"the kind of {file}")
    if kind is None:
        return None
    name = kind.strip()
    is_name = any(map(str.isalpha, kind)) and name.lower() not in _NO_KINDS
    is_number = re.fullmatch(r"[-+.\de]+", name, re.IGNORECASE)
    is_short = kind.isprintable() and len(kind) <= _LONGEST_KIND
    if not is_name or is_number or not is_short:
        raise ValueError(
            f"the kind of {file} must be a name with a letter, of at most "
            f"{_LONGEST_KIND} characters and none of {', '.join(_NO_KINDS)}, got "
            f"{kind[: _LONGEST_KIND + 1]!r}."
        )
    return name


def _check_boxes(boxes, file):
    if not isinstance(boxes, list | None):
        raise ValueError(f"the boxes of {file} must be a list, got {boxes!r}.")
    return [_check_box(box, file) for box in boxes or ()]


def _check_box(box, file):
    is_box = isinstance(box, list) and len(box) == 4 and {type(x) for x in box} == {int}
    if not is_box or not (0 <= box[0] < box[2] and 0 <= box[1] < box[3]):
        raise ValueError(
            f"a box of {file} must be top, left, bottom and right, numbers of pixels "
            f"of which the latter two are larger, got {box!r}."
        )
    return tuple(box)
