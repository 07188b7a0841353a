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
# Seconds after which a partial file is surely locked by whoever is still writing it.
_SETTLED = 30
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

    What processes that were killed have left of the same file is removed.
    """
    path = check_file_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    writer = f"{os.getpid()}.{threading.get_ident()}"
    partial = path.with_name(f".{path.name}.{writer}{_PARTIAL}")
    try:
        with _claimed(partial):
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
def _claimed(partial):
    """Hold the lock of a file while it is written: that of the dead is free."""
    descriptor = os.open(partial, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        with suppress(OSError):  # a disk without locks
            _lock_opened(descriptor)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(path):
    """Remove what writers of a file have left that are no more."""
    start = f".{path.name}."
    with suppress(OSError):  # a folder that may be written to, but not listed
        for name in os.listdir(path.parent):
            if name.startswith(start) and name.endswith(_PARTIAL):
                _remove_if_abandoned(path.with_name(name))


def _remove_if_abandoned(partial):
    with suppress(OSError):  # it is being written, or just gone, or without locks
        if time.time() - partial.stat().st_mtime < _SETTLED:
            return
        descriptor = os.open(partial, os.O_RDWR)
        try:
            _lock_opened(descriptor)
            partial.unlink()
        finally:
            os.close(descriptor)


@contextmanager
def hold_lock(path):
    """Hold the lock of a file that is to be changed, or raise if another does.

    The lock is a hidden file beside it, in a folder that exists, which names the
    process and is free again when that ends, however it does. Where there are no such
    locks, as on Windows, nothing is held.
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
            _lock_opened(descriptor)
        except BlockingIOError as error:
            owner = os.read(descriptor, _LONGEST).decode(errors="replace")
            os.close(descriptor)
            raise BlockingIOError(
                f"{path} is being changed by {owner or 'another process'}. Wait until "
                "that is done, and try again."
            ) from error
        except OSError:  # a system or a disk without locks
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        os.close(descriptor)  # its holder has removed it meanwhile


def _lock_opened(descriptor):
    """Lock an open file until it is closed, or its process ends.

    Raises BlockingIOError if it is locked already, and another OSError where the system
    or the disk has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
