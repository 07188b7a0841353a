"""Threads: how many torch uses, functions called in several, and after a fork."""

import contextvars
import functools
import math
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from numbers import Integral
from pathlib import Path

import torch
from joblib import cpu_count

# Far more threads than any machine has cores; torch crashes where it cannot start them.
_MOST_THREADS = 1024
# Numbers that torch leaves to a thread at least, where it shares work among some.
_SHARED = 2**15
_MOST_TEAMS = 4
_IS_SET = "OMP_WAIT_POLICY" in os.environ  # which is read when torch is loaded
_IMPORTED_IN = os.getpid()
# Of a thread that works ahead of another one: how many threads that one may use; and of
# one that was started after a fork.
_PREFETCHING, _OWN = threading.local(), threading.local()
_SLEEPING = threading.local()  # whether there are idle teams for a thread


def make_lock():
    """Make a lock for a module, which is free in a forked process, whoever held it."""
    lock = threading.Lock()
    if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock


def safe_after_fork(function):
    """Let a new thread run a function that computes, if the process was forked.

    A thread that has worked with those of OpenMP before the fork would wait forever for
    them, which do not exist any more. A new one gets its own.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        if os.getpid() == _IMPORTED_IN or getattr(_OWN, "is_new", False):
            return function(*args, **kwargs)
        context = contextvars.copy_context()
        mark = functools.partial(setattr, _OWN, "is_new", True)
        with ThreadPoolExecutor(1, initializer=mark) as pool:
            return pool.submit(context.run, function, *args, **kwargs).result()

    return call


_SETTING_THREADS = make_lock()


def count_threads(n_jobs):
    """Return the threads of this machine that an `n_jobs` parameter means.

    joblib's own answer would depend on the cluster that a call may run in.
    """
    if not isinstance(n_jobs, Integral) or isinstance(n_jobs, bool):
        raise ValueError(f"n_jobs must be None or a whole number, got {n_jobs!r}.")
    if n_jobs == 0:
        raise ValueError("n_jobs=0 has no meaning. Pass None, -1 or a positive number.")
    if n_jobs > _MOST_THREADS:
        raise ValueError(
            f"n_jobs={n_jobs} threads are more than can be started. Pass -1 for one on "
            f"each core, or {_MOST_THREADS} at most."
        )
    return n_jobs if n_jobs > 0 else max(cpu_count() + 1 + n_jobs, 1)


@contextmanager
def sleeping_teams():
    """Let threads of OpenMP that wait for each other sleep where cores are wanted.

    GNU's libgomp lets threads spin for milliseconds after each of the thousands of
    small steps of a fit, and so takes the core from the thread that they wait for if
    other processes want the cores, too. Where a process has more threads than cores
    they sleep almost at once: so it gets more here, which do nothing. On an idle
    machine they may spin, as waking takes time. OMP_WAIT_POLICY=passive does the same,
    but only if it is set before torch is loaded.
    """
    n_threads = torch.get_num_threads()
    with ExitStack() as stack:
        for _ in range(_count_teams(n_threads)):
            pool = stack.enter_context(ThreadPoolExecutor(1))
            # As many numbers as torch shares among all threads of a team.
            pool.submit(torch.ones, n_threads * _SHARED).result()
            stack.callback(setattr, _SLEEPING, "are_there", False)
            _SLEEPING.are_there = True
        yield


def _count_teams(n_threads):
    """Return how many teams make threads more than cores, 0 if none need be there."""
    are_there = _IS_SET or getattr(_SLEEPING, "are_there", False)
    is_gpu = torch.cuda.is_initialized()  # it computes, and steps are short
    if are_there or is_gpu or n_threads == 1 or sys.platform != "linux":
        return 0
    if _count_running_elsewhere() + n_threads <= os.cpu_count():
        return 0
    # With that of the caller: each is a thread of Python and n_threads - 1 others.
    n_teams = math.ceil(len(os.sched_getaffinity(0)) / (n_threads - 1)) - 1
    # Few threads on many cores would need many teams, and have the cores they need.
    return max(n_teams, 1) if n_teams <= _MOST_TEAMS else 0


def _count_running_elsewhere():
    """Return how many threads of other processes run, or wait for a core, on Linux."""
    n_own = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            _, _, rest = (task / "stat").read_text().rpartition(")")
            n_own += rest.split()[0] == "R"
    _, _, _, counts, _ = Path("/proc/loadavg").read_text().split()
    return max(int(counts.partition("/")[0]) - n_own, 0)


@contextmanager
def torch_threads(n_jobs):
    """Let torch use `n_jobs` threads of the CPU inside; None leaves it as it is.

    For calls of this thread alone: what other threads use does not change.
    """
    before = torch.get_num_threads()
    _set_threads_here(before if n_jobs is None else count_threads(n_jobs))
    try:
        yield
    finally:
        _set_threads_here(before)


def _set_threads_here(n_threads):
    """Set the number of torch's threads for calls of this thread alone.

    torch sets it for this thread and all that will be started. A second thread, which
    has just been started and knows the number for those, sets it back.
    """
    if n_threads == torch.get_num_threads():
        return
    with _SETTING_THREADS, ThreadPoolExecutor(1) as pool:
        n_others = pool.submit(torch.get_num_threads).result()
        torch.set_num_threads(n_threads)
        pool.submit(torch.set_num_threads, n_others).result()


def map_in_threads(function, items, n_most=None, uses_torch=False):
    """Return what a function gives for each item, by as many threads as torch uses.

    By `n_most` at most, as threads that are in Python for long hinder each other. With
    `uses_torch`, torch uses one thread in each, instead of as many again.
    """
    n_threads = getattr(_PREFETCHING, "n_threads", None) or torch.get_num_threads()
    n_threads = min(n_most or len(items), n_threads, len(items))
    if n_threads < 2:
        return [function(item) for item in items]
    begin = functools.partial(_set_threads_here, 1) if uses_torch else None
    with ThreadPoolExecutor(n_threads, initializer=begin) as pool:
        return list(pool.map(function, items))


def map_ahead(function, items):
    """Yield what a function gives for each item, in a thread that is one item ahead."""
    n_threads = torch.get_num_threads()
    count = functools.partial(setattr, _PREFETCHING, "n_threads")
    with ThreadPoolExecutor(1, initializer=count, initargs=(n_threads,)) as pool:
        ahead = None
        for item in items:
            former, ahead = ahead, pool.submit(function, item)
            if former is not None:
                yield former.result()
        if ahead is not None:
            yield ahead.result()
