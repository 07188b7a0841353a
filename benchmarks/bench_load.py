"""Many at once: processes and threads that score with one loaded model, for minutes.

First so many threads of one process, then so many processes with a thread each; all
map the same file into memory. Every score is compared, to the last bit, with the one
that a single thread gives. Memory is what all processes together have for themselves,
without libraries and the mapped file, which they share; its growth is that from the
first to the last quarter of the time. Synthetic images, without training.

Example: python benchmarks/bench_load.py --seconds 120
"""

import multiprocessing
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from _common import machine_name, make_parser, print_json, print_table
from _hooks import check_device

import skpatchsvdd
from skpatchsvdd.datasets import make_textures

PERCENTILES = (50, 90, 99, 100)
N_SAMPLES = 200  # of memory, at most
LEAST_SECONDS = 0.5  # between two of them: each takes the process some milliseconds


def main():
    args = parse_arguments()
    made = {"image_size": args.size}
    images = make_textures(args.images, random_state=0, **made).images
    made["anomaly_fraction"] = 0.5
    new = make_textures(args.different, random_state=1, **made).images
    device = check_device(args.device)
    params = {"max_iter": 0, "random_state": 0, "n_jobs": 1, "device": str(device)}
    est = skpatchsvdd.PatchSVDD(bank_size=args.bank_size, **params).fit(images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.model"
        est.save(path)
        del est
        expected = [score(skpatchsvdd.load(path), x) for x in new]
        work = (path, new, expected, args.seconds)
        rows = [in_threads(args.workers, *work), in_processes(args.workers, *work)]
    machine = machine_name(device)
    print(f"{machine}\n")
    print_table(rows)
    print_json(machine=machine, seconds=args.seconds, rows=rows)
    if any(row["errors"] or row["other scores"] for row in rows):
        sys.exit("some scores are wrong or missing")


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--workers", type=int, default=4, help="threads, and processes")
    parser.add_argument("--images", type=int, default=40, help="to learn from")
    parser.add_argument("--different", type=int, default=8, help="to score, in turn")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--bank-size", type=int, default=20_000)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def in_threads(n_workers, path, images, expected, seconds):
    """Let threads of this process share an estimator; return a row of the table."""
    est = skpatchsvdd.load(path, mmap=True)
    score(est, images[0])  # what is made on first use
    with Memory(["self"], seconds) as memory, ThreadPoolExecutor(n_workers) as pool:
        calls = [
            pool.submit(keep_scoring, est, i, images, expected, seconds)
            for i in range(n_workers)
        ]
        parts = [call.result() for call in calls]
    return summarize(f"{n_workers} threads", parts, memory, seconds)


def in_processes(n_workers, path, images, expected, seconds):
    """Let processes map the same file; return a row of the table."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(n_workers + 1)
    setting = (path, barrier)
    with ProcessPoolExecutor(n_workers, context, prepare, setting) as pool:
        calls = [
            pool.submit(score_in_process, i, images, expected, seconds)
            for i in range(n_workers)
        ]
        barrier.wait()  # until all are ready
        with Memory(list(pool._processes), seconds) as memory:
            parts = [call.result() for call in calls]
    return summarize(f"{n_workers} processes", parts, memory, seconds)


def prepare(path, barrier):
    """Load the model, in a new process."""
    global EST, BARRIER
    EST, BARRIER = skpatchsvdd.load(path, mmap=True), barrier


def score_in_process(i, images, expected, seconds):
    score(EST, images[0])
    BARRIER.wait()
    return keep_scoring(EST, i, images, expected, seconds)


def keep_scoring(est, i, images, expected, seconds):
    """Score one image after the other; return times, errors and other scores."""
    times, errors, n_others = [], [], 0
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        k = (i + len(times)) % len(images)
        try:
            n_others += score(est, images[k]) != expected[k]
        except Exception as error:  # whatever it is, it is counted
            errors.append(repr(error))
        times.append(time.perf_counter() - start)
    return times, errors, int(n_others)


def score(est, image):
    return float(est.score_samples(image[None])[0])


class Memory:
    """Watches the memory of some processes until the block ends."""

    def __init__(self, processes, seconds):
        self._processes = processes
        self._every = max(seconds / N_SAMPLES, LEAST_SECONDS)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._samples = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _watch(self):
        while not self._done.wait(self._every):
            self._samples.append(sum(map(read_memory, self._processes)))

    def summarize(self):
        """Return memory at the end, and its growth, as columns of a table."""
        if not self._samples:
            return {"MB": None, "growth %": None}
        quarter = max(len(self._samples) // 4, 1)
        first = np.median(self._samples[:quarter])
        last = np.median(self._samples[-quarter:])
        return {"MB": last / 1e6, "growth %": 100 * float(last / first - 1)}


def read_memory(process):
    """Return the bytes that a process has for itself, of no file."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(1024 * int(x.split()[1]) for x in lines if x.startswith("Anonymous:"))


def summarize(name, parts, memory, seconds):
    times = np.concatenate([times for times, _, _ in parts])
    errors = [error for _, errors, _ in parts for error in errors]
    for error in sorted(set(errors)):
        print(error, file=sys.stderr)
    row = {
        "way": name,
        "images": len(times),
        "errors": len(errors),
        "other scores": sum(n for _, _, n in parts),
        "images a s": len(times) / seconds,
    }
    for percentile in PERCENTILES:
        row[f"{percentile}% ms"] = 1000 * float(np.percentile(times, percentile))
    return row | memory.summarize()


if __name__ == "__main__":
    main()
