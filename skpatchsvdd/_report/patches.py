"""Patches of alarms, beside the normal patches that they were compared with."""

import os
from functools import lru_cache
from pathlib import Path

from skpatchsvdd._images import read_display, read_shape
from skpatchsvdd._report.pictures import OVERLAY_SIZE, encode_picture

# Longest side of pictures of patches, and training images that stay in memory.
_PATCH_SIZE = 96
_N_KEPT = 16
_SIDES = ("top", "bottom"), ("left", "right")
# Why there is no picture of a training image.
_WHY_NOT = {
    "changed": ": the file has changed since it was learnt from",
    "unreadable": ": the file can no longer be read",
}


class PatchPairs:
    """Shows the patches of alarms and the normal ones they were compared with."""

    def __init__(self, estimator):
        self._est = estimator
        self._status = {}  # of training files, by the number of the image and its state
        self._read = lru_cache(maxsize=_N_KEPT)(
            lambda file, state: (read_display(file, OVERLAY_SIZE), read_shape(file)[:2])
        )

    def check_files(self, matches):
        """Find out which training files of some matches are still what they were."""
        numbers = {int(i) for x in matches for i in x["image"].flat}
        keys = [(i, _find_state(self._est.training_files_[i])) for i in sorted(numbers)]
        new = [key for key in keys if key not in self._status]
        status = self._est.check_training_files([i for i, _ in new])
        self._status.update(zip(new, status.tolist(), strict=True))

    def show(self, matches, image, size):
        """Return pictures of patches, by scale, and what they were compared with.

        `matches` are of one region, which `check_files` has seen; the image came in
        `size`.
        """
        pairs = zip(matches, self._est.patch_sizes_, strict=True)
        return [
            {
                "size": patch_size,
                "patch": _cut(image, size, match, ""),
                **self._show_normal(match),
            }
            for match, patch_size in pairs
        ]

    def _show_normal(self, match):
        number = int(match["image"])
        file = self._est.training_files_[number]
        origin = f"training image {number}"
        if file is not None:
            origin = f"training image {'/'.join(Path(file).parts[-2:])}"
        state, normal = _find_state(file), None
        # A file that was replaced meanwhile has a state that was not checked.
        status = self._status.get((number, state), "changed")
        if status == "same":
            try:
                normal = _cut(*self._read(file, state), match, "image_")
            except (OSError, ValueError):  # it is being replaced just now
                status = "unreadable"
            if _find_state(file) != state:
                status, normal = "changed", None
        return {"normal": normal, "from": origin + _WHY_NOT.get(status, "")}


def _find_state(file):
    """Return what is another for a file that was written to or replaced."""
    try:
        found = os.stat(file)
    except (OSError, TypeError):  # gone, or an image that did not come as a file
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _cut(image, size, match, prefix):
    """Return the picture of a box, given in pixels of the size an image came in."""
    parts = []
    for names, n, n_came in zip(_SIDES, image.shape, size, strict=False):
        start, stop = (round(int(match[prefix + x]) * n / n_came) for x in names)
        start = min(start, n - 1)  # at least one pixel, also of a thin image
        parts.append(slice(start, max(stop, start + 1)))
    return encode_picture(image[tuple(parts)], _PATCH_SIZE)
