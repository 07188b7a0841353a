"""Where the images of a page are: links to their files, and paths below a folder."""

import hashlib
import os
from pathlib import Path
from urllib.parse import quote


def refer(described, page_folder, image_folder):
    """Return what is known of an image with links and a path instead of its files.

    "file" and "picture" are absolute paths or None, and become links that lead from the
    folder of the page. The path is below `image_folder`, which `find_folder` gives.
    """
    links = {name: _link(described[name], page_folder) for name in ("file", "picture")}
    path = described["file"]
    if path is not None:
        path = os.path.relpath(path, image_folder) if image_folder else path
        path = path.replace(os.sep, "/")
    return described | links | {"path": path}


def find_folder(files):
    """Return the folder that all of some files are in, or "" if there is none."""
    try:
        return os.path.commonpath({os.path.dirname(file) for file in files})
    except ValueError:  # no files, or on several drives
        return ""


def name_page(path, model):
    """Return text that tells the page of a model at a path from others."""
    text = os.fsencode(os.path.abspath(path)) + b"/" + model.encode()
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def _link(file, folder):
    if file is None:
        return None
    try:
        path = os.path.relpath(file, folder).replace(os.sep, "/")
        return quote(os.fsencode(path))  # a name need not be text
    except ValueError:  # on another drive
        return Path(file).as_uri()
