"""Locks of files between processes; the system lets go of those of a dead one."""

import os
import socket
from contextlib import contextmanager, suppress

from skpatchsvdd._utils.files import check_file_name, lock_opened

# Bytes of a lock file that are read: a number, and the name of a machine.
_LONGEST = 300


@contextmanager
def hold_lock(path):
    """Hold the lock of a file that is to be changed, or raise if another does.

    The lock is a hidden file beside it that names the process, and is free again when
    that ends, however it does. Where there are no such locks, as on Windows, nothing
    is held.

    Parameters
    ----------
    path : str or path
        The file, in a folder that exists.
    """
    path = check_file_name(path)
    lock = path.with_name(f".{path.name}.lock")
    descriptor = _open_lock(lock, path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(
            descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode()
        )
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
            lock_opened(descriptor)
        except BlockingIOError as error:
            owner = os.read(descriptor, _LONGEST).decode(errors="replace")
            os.close(descriptor)
            raise BlockingIOError(
                f"{path} is being changed by {owner or 'another process'}. Wait until "
                "that is done, and try again."
            ) from error
        except OSError:  # a system or a disk without locks
            return descriptor
        if _is_at(descriptor, lock):
            return descriptor
        os.close(descriptor)  # its holder has removed it meanwhile


def _is_at(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
