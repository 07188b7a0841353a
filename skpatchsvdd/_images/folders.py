"""Folders of image files."""

import os
from pathlib import Path

# How the names of files end that are read from a folder.
ENDINGS = {
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".tif", ".tiff"),
    *(".webp", ".gif", ".jp2", ".pbm", ".pgm", ".ppm", ".pnm", ".tga", ".avif"),
}


def find_files(folder):
    """Find the image files in a folder and all folders below it.

    What is hidden, by a name that begins with a dot, is passed over.

    Parameters
    ----------
    folder : path
        The folder.

    Returns
    -------
    files : list of Path
        Sorted.
    others : list of Path
        Files that are no images by name.
    unreadable : list of (str, str)
        Folders that cannot be looked into, and why.
    """
    files, others, errors = [], [], []
    for parent, folders, names in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in names:
            file = Path(parent, name)
            if not _is_hidden(name) and file.is_file():
                (files if file.suffix.lower() in ENDINGS else others).append(file)
    unreadable = [(error.filename, _tell(error)) for error in errors]
    return sorted(files), sorted(others), unreadable


def _is_hidden(name):
    return name.startswith(".")


def _tell(error):
    return (
        f"{error.filename} is a folder that cannot be looked into: {error.strerror}. "
        "Allow it to be read, or leave it out."
    )
