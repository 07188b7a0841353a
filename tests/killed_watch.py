"""Watch a folder that a process writes to, killed again and again; for a test.

    python killed_watch.py MODEL IMAGES FOLDER OUTPUT SEED N_KILLS

IMAGES is a folder of good images, which arrive in FOLDER as from a camera and a bad
network: whole, in parts, overwritten, moved away, broken. Each watch is a process that
is killed with SIGKILL at a random moment; the last one is left to finish.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from skpatchsvdd._cli import inspect, main, watch  # torch is imported before any fork

_WATCH_SECONDS = 0.1
_LONGEST = 60
_QUIET = 5  # seconds, since a busy machine may take some for a batch
_N_IMAGES = 18


def run_trial(model, images, folder, output, seed, n_kills):
    """Write and watch, kill the watch, and let the last one finish."""
    watch._WATCH_SECONDS = _WATCH_SECONDS
    rng = random.Random(seed)
    args = ["inspect", model, "--watch", folder, "-o", output]
    writer = fork(write_images, Path(images), Path(folder), random.Random(seed))
    for _ in range(n_kills):
        watcher = fork(main, args)
        time.sleep(rng.uniform(0.2, 1.2))
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)
    watcher = fork(main, args)
    os.waitpid(writer, 0)
    wait_for_end(Path(output) / "results.csv")
    os.kill(watcher, signal.SIGINT)
    _, status = os.waitpid(watcher, 0)
    return os.waitstatus_to_exitcode(status)


def fork(function, *args):
    """Run a function in a process of its own; return the number of that."""
    child = os.fork()
    if child:
        return child
    try:
        os._exit(function(*args) or 0)
    finally:
        os._exit(99)  # it has raised


def write_images(images, folder, rng):
    """Let images arrive; now and then something is odd."""
    for i, file in enumerate(sorted(images.iterdir())[:_N_IMAGES]):
        whole, target = file.read_bytes(), folder / file.name
        kind = i % 6
        if kind == 1:  # an upload that pauses
            target.write_bytes(whole[: len(whole) // 2])
            time.sleep(rng.uniform(0.1, 0.5))
        elif kind == 2:  # moved away at some moment
            moved = folder / f"moved_{file.name}"
            moved.write_bytes(whole)
            time.sleep(rng.uniform(0.05, 0.4))
            moved.rename(folder.parent / moved.name)
        elif kind == 3:
            (folder / f"broken_{file.name}").write_bytes(whole[:60])
        target.write_bytes(whole)
        if kind == 4:
            time.sleep(rng.uniform(0.05, 0.4))
            target.write_bytes(whole)
        time.sleep(rng.uniform(0, 0.1))


def wait_for_end(table):
    """Wait until a table has not grown for a while."""
    end, size = time.monotonic() + _LONGEST, -1
    while time.monotonic() < end:
        found = table.stat().st_size if table.exists() else -1
        if found == size and found > 0:
            return
        size = found
        time.sleep(_QUIET)


if __name__ == "__main__":
    *paths, seed, n_kills = sys.argv[1:]
    assert inspect  # imported before any fork
    sys.exit(run_trial(*paths, int(seed), int(n_kills)))
