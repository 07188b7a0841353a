"""Folders of image files."""

import os
from pathlib import Path

# How the names of files end that are read from a folder.
ENDINGS = {
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".tif", ".tiff"),
    *(".webp", ".gif", ".jp2", ".pbm", ".pgm", ".ppm", ".pnm", ".tga", ".avif"),
}
# Folders that a line names, at most.
_N_NAMED = 20


def find_files(folder):
    """Find the image files in a folder and all folders below it, but hidden ones.

    Returns the files, sorted, pipes and devices of such names among them; files that
    are no images by name; and what cannot be looked at, pairs of a path and a reason.
    """
    files, others, lost, errors = [], [], [], []
    for parent, folders, names in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            if name.startswith("."):
                continue
            is_image = file.suffix.lower() in ENDINGS
            if os.path.isfile(file):  # False also of what may not be looked at
                (files if is_image else others).append(file)
            elif is_image and (reason := _find_reason(file)):
                lost.append((str(file), reason))
            elif is_image and os.path.exists(file):  # a pipe or a device
                files.append(file)
    unreadable = [(error.filename, _tell(error)) for error in errors] + sorted(lost)
    return sorted(files), sorted(others), unreadable


def find_all_files(sources):
    """Find the image files of several folders, and single files of any name.

    Returns what `find_files` does, in the order of the sources.
    """
    files, others, unreadable = [], [], []
    for path in map(Path, sources):
        if os.path.isdir(path):
            found = find_files(path)
        elif os.path.exists(path):
            found = [path], [], []
        elif reason := _find_reason(path):
            found = [], [], [(str(path), reason)]
        else:
            raise FileNotFoundError(f"there is no file or folder {path}.")
        for part, more in zip((files, others, unreadable), found, strict=True):
            part += more
    if not files and not unreadable:
        endings = ", ".join(sorted(ENDINGS))
        names = ", ".join(map(str, sources[:_N_NAMED]))
        raise FileNotFoundError(f"there are no images ({endings}) in {names}.")
    return files, others, unreadable


def _find_reason(file):
    """Return why a file cannot be looked at, or None, also if it is no longer there."""
    try:
        os.stat(file)
    except FileNotFoundError:
        if not os.path.islink(file):
            return None
        return (
            f"{file} is a link to {os.readlink(file)}, which is not there. Remove it, "
            "or bring back what it leads to."
        )
    except OSError as error:
        return f"{file} cannot be looked at: {error.strerror}."
    return None


def _tell(error):
    return (
        f"{error.filename} is a folder that cannot be looked into: {error.strerror}. "
        "Allow it to be read, or leave it out."
    )
