"""Files that are whole, or what they were before."""

import os
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_when_whole(path):
    """Give a path to write to; what is written replaces a file when all is done."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
