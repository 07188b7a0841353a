"""Files that are whole, or what they were before."""

import errno
import os
import threading
from contextlib import contextmanager
from pathlib import Path

# What a full disk, a used-up quota, a limit of file sizes and a bad disk say.
_CANNOT_HOLD = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def check_file_name(path):
    """Return the `Path` of a file, or raise if it names none."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"path must be the name of a file, a str, got {path!r}.")
    if not os.fspath(path):
        raise ValueError("path is empty. Pass the name of a file.")
    if os.path.isdir(path):
        raise IsADirectoryError(
            errno.EISDIR, "it is a folder. Pass the name of a file in it", str(path)
        )
    return Path(path)


@contextmanager
def replaced_when_whole(path):
    """Give a path to write to; what is written replaces a file when all is done."""
    path = check_file_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = f"{os.getpid()}.{threading.get_ident()}"
    partial = path.with_name(f".{path.name}.{writer}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        if error.errno not in _CANNOT_HOLD:
            raise
        reason = f"{error.strerror}; what was there before is unchanged"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
