"""Computing in a process that was forked."""

import contextvars
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

_IMPORTED_IN = os.getpid()
_OWN = threading.local()


def was_forked():
    """Whether this process was forked after the package had been imported."""
    return os.getpid() != _IMPORTED_IN


def make_lock():
    """Make a lock for a module, which is free in a forked process, whoever held it."""
    lock = threading.Lock()
    if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock


def safe_after_fork(function):
    """Let a new thread run a function that computes, if the process was forked.

    The threads that OpenMP has started do not exist in a forked process, and a thread
    that has worked with them before the fork would wait for them forever. A new thread
    gets its own.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        if not was_forked() or getattr(_OWN, "is_new", False):
            return function(*args, **kwargs)
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1, initializer=_mark_as_new) as pool:
            return pool.submit(context.run, function, *args, **kwargs).result()

    return call


def _mark_as_new():
    _OWN.is_new = True
