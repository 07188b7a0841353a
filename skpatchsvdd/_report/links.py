"""Where the images of a page are: links to their files, and paths below a folder."""

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

_KEY_BYTES = 12


def refer(described, page_folder, image_folder):
    """Return what is known of an image with links and a path instead of its files.

    Parameters
    ----------
    described : dict
        With "file" and "picture", absolute paths or None.
    page_folder : str
        Where the page is, from which links lead.
    image_folder : str
        What `find_folder` gives, below which the path is.
    """
    links = {name: _link(described[name], page_folder) for name in ("file", "picture")}
    file = described["file"]
    path = None if file is None else _with_strokes(_below(file, image_folder))
    return described | links | {"path": path}


def find_folder(files):
    """Return the folder that all of some files are in, or "" if there is none."""
    folders = {os.path.dirname(file) for file in files}
    try:
        return os.path.commonpath(folders)
    except ValueError:  # no files, or on several drives
        return ""


def name_page(path, model):
    """Return text that tells the page of a model at a path from others."""
    text = os.fsencode(os.path.abspath(path)) + b"/" + model.encode()
    return hashlib.blake2b(text, digest_size=_KEY_BYTES).hexdigest()


def _below(file, folder):
    return os.path.relpath(file, folder) if folder else file


def _with_strokes(path):
    return path.replace(os.sep, "/")


def _link(file, folder):
    if file is None:
        return None
    try:
        path = _with_strokes(os.path.relpath(file, folder))
        return quote(os.fsencode(path))  # a name need not be text
    except ValueError:  # on another drive
        return Path(file).as_uri()
