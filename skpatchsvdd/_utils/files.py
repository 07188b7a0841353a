"""Files that are whole, or what they were before, and locks between processes."""

import errno
import os
import socket
import stat
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# What a full disk, a used-up quota, a limit of file sizes and a bad disk say.
_CANNOT_HOLD = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_PARTIAL = ".partial"
_ABANDONED = 24 * 3600  # seconds after which nobody is writing a partial file any more
# Bytes of a lock file that are read: a number, and the name of a machine.
_LONGEST = 300


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


def open_regular(file, flags):
    """Open a regular file, as an `opener` of `open`; raise OSError of anything else."""
    descriptor = os.open(file, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device", str(file))
    return descriptor


@contextmanager
def replaced_when_whole(path):
    """Give a path to write to; what is written replaces a file when all is done.

    What processes that were killed have left of the same file is removed: what nobody
    has written to for a day.
    """
    path = check_file_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    start, now = f".{path.name}.", time.time()
    with suppress(OSError):  # a folder that may be written to, but not listed
        for name in os.listdir(path.parent):
            other = path.with_name(name)
            is_partial = name.startswith(start) and name.endswith(_PARTIAL)
            if is_partial and now - other.stat().st_mtime > _ABANDONED:
                other.unlink()
    writer = f"{os.getpid()}.{threading.get_ident()}"
    partial = path.with_name(f".{path.name}.{writer}{_PARTIAL}")
    try:
        partial.touch()
        yield partial
        partial.replace(path)
    except OSError as error:
        if error.errno not in _CANNOT_HOLD:
            raise
        reason = f"{error.strerror}; what was there before is unchanged"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def hold_lock(path):
    """Hold the lock of a file that is to be changed, or raise if another does.

    The lock is a hidden file beside it, which names the process and is free again when
    that ends, however it does. Where there are no locks, as on Windows, none is held.
    """
    path = check_file_name(path)
    lock = path.with_name(f".{path.name}.lock")
    descriptor = _open_lock(lock, path)
    try:
        os.ftruncate(descriptor, 0)
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        os.write(descriptor, owner.encode())
        yield
    finally:
        with suppress(OSError):  # Windows removes no file that is open
            lock.unlink(missing_ok=True)
        os.close(descriptor)


def _open_lock(lock, path):
    """Return the descriptor of a lock file that is held by nobody else."""
    while True:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            if fcntl is None:
                return descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, _LONGEST).decode(errors="replace")
            os.close(descriptor)
            raise BlockingIOError(
                f"{path} is being changed by {owner or 'another process'}. Wait until "
                "that is done, and try again."
            ) from error
        except OSError:  # a disk without locks
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        os.close(descriptor)  # its holder has removed it meanwhile
