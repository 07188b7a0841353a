"""The command serve under load: requests a second, how long they take, and memory.

First plain calls of `inspect`, one image at a time and 16, in this process; then a
server in a process of its own, asked by more and more clients at a time, each of which
sends the next image when it has an answer. "busy" are answers of 503, after which a
client waits as long as it is told to. With --hostile a crowd is there besides, during
the last row: connections that say nothing, half of a request, requests without end, and
bytes that are no image. With --arrivals so many images a second are written to a
folder that the server watches, and removed after 100 seconds; "lost" are those that it
has no row of in the end, "twice" those with more. Memory is what the server has for
itself, and its growth that from the first to the last quarter of the time. Synthetic
images, without training.

With --lines so many lines are in one server instead, each with a model and a folder of
its own, to which --arrivals images a second are written, and ten times as many to that
of the first line. "s" are the seconds from the file to its row, and /health is asked
ten times a second.

Example: python benchmarks/bench_serve.py --seconds 30 --hostile
Of lines: python benchmarks/bench_serve.py --lines 10 --arrivals 0.2 --seconds 120
"""

import functools
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np
from _common import machine_name, make_parser, print_json, print_table
from _hooks import check_device
from bench_load import Memory
from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

PERCENTILES = (50, 99, 100)
KEPT_SECONDS = 100  # that a file stays in the folder that is watched
N_HELD = 400  # connections that the crowd holds at a time, more than a server takes


def main():
    args = parse_arguments()
    made = {"image_size": args.size}
    images = make_textures(args.images, random_state=0, **made).images
    new = make_textures(16, anomaly_fraction=0.5, random_state=1, **made).images
    device = check_device(args.device)
    est = PatchSVDD(max_iter=0, random_state=0, device=str(device)).fit(images)
    if args.lines:
        measure_lines(est, [encode(x) for x in new], args, device)
        return
    rows = [call_plainly(est, new, n, min(args.seconds, 30)) for n in (1, 16)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.model"
        est.save(path)
        watched = Path(folder) / "new"
        watched.mkdir()
        options = path, "--watch", watched
        with start_server(options, device) as (port, process):
            bodies = [encode(x) for x in new]
            load(port, bodies, 4, 3)  # what is made on first use
            for n in args.clients:
                is_last = args.hostile and n == args.clients[-1]
                crowd = harass(port) if is_last else nullcontext()
                arriving = Arrivals(watched, bodies, args.arrivals, f"{n}_clients")
                with crowd, arriving, Memory([process.pid], args.seconds) as memory:
                    found = load(port, bodies, n, args.seconds)
                name = f"{n} clients" + ", a crowd besides" * is_last
                row = summarize(name, *found, memory)
                rows.append(row | arriving.count(port))
    machine = machine_name(device)
    print(f"{machine}\n")
    print_table(rows)
    print_json(machine=machine, seconds=args.seconds, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of each row")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 128])
    parser.add_argument("--images", type=int, default=40, help="to learn from")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--arrivals", type=float, default=0, help="images a second")
    parser.add_argument("--lines", type=int, default=0, help="in one server")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--hostile", action="store_true", help="with a crowd besides")
    return parser.parse_args()


def encode(image):
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def call_plainly(est, images, n_each, seconds):
    """Call `inspect` on so many images at a time; return a row of the table."""
    est.inspect(images[:n_each])
    times, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        est.inspect(images[:n_each])
        times.append(time.perf_counter() - start)
    return summarize(
        f"plain calls, {n_each} images", times, 0, 0, seconds, n_each=n_each
    )


@contextmanager
def start_server(options, device):
    """Yield the port of a server, and its process."""
    command = [sys.executable, "-m", "skpatchsvdd", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--device", str(device), *options],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        line = next(x for x in process.stderr if x.startswith("open http"))
        yield int(line.partition("127.0.0.1:")[2].partition("/")[0]), process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def measure_lines(est, bodies, args, device):
    """Print how soon each line of a server sees its images, and what all take."""
    rows, health = [], []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as arriving:
        names, options = [f"line{i}" for i in range(args.lines)], []
        for name in names:
            Path(folder, name).mkdir()
            est.save(Path(folder, f"{name}.model"))
            options += ["--line", f"{name}={folder}/{name}.model:{folder}/{name}"]
        with start_server(options, device) as (port, process):
            for name in names:  # what is made on first use
                Path(folder, name, "first.png").write_bytes(bodies[0])
            while not all(x.get("last") for x in ask(port, "/api/lines")["lines"]):
                time.sleep(0.5)
            all_arriving = [
                Arrivals(Path(folder, x), bodies, args.arrivals * (1 + 9 * (i == 0)), x)
                for i, x in enumerate(names)
            ]
            with Memory([process.pid], args.seconds) as memory:
                for one in all_arriving:
                    arriving.enter_context(one)
                end = time.monotonic() + args.seconds
                while time.monotonic() < end:
                    start = time.perf_counter()
                    ask(port, "/health")
                    health.append(time.perf_counter() - start)
                    time.sleep(0.1)
                images = [list_images(port, f"/lines/{x}") for x in names]
            for name, one, own in zip(names, all_arriving, images, strict=True):
                rows.append({"line": name} | one.describe(own, args.seconds))
    machine, times = machine_name(device), np.percentile(health, PERCENTILES)
    totals = {
        f"/health {x}% ms": 1000 * y for x, y in zip(PERCENTILES, times, strict=True)
    }
    totals |= memory.summarize()
    print(f"{machine}\n")
    print_table(rows)
    print_table([totals])
    print_json(machine=machine, seconds=args.seconds, rows=rows, **totals)


def load(port, bodies, n_clients, seconds):
    """Let clients ask; return seconds of answers, busy, failed, and of all of it."""
    start = time.perf_counter()
    end = start + seconds
    with ThreadPoolExecutor(n_clients) as pool:
        ask = functools.partial(keep_asking, port, bodies, end)
        calls = [pool.submit(ask, i) for i in range(n_clients)]
        parts = [call.result() for call in calls]
    times = [x for own, _, _ in parts for x in own]
    n_busy, n_errors = (sum(part[i] for part in parts) for i in (1, 2))
    return times, n_busy, n_errors, time.perf_counter() - start


def keep_asking(port, bodies, end, i):
    times, n_busy, n_errors = [], 0, 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while (start := time.perf_counter()) < end:
        i += 1
        try:
            connection.request("POST", "/inspect", bodies[i % len(bodies)])
            answer = connection.getresponse()
            answer.read()
        except OSError:
            n_errors += 1
            connection.close()
            continue
        if answer.status == 200:
            times.append(time.perf_counter() - start)
        elif answer.status == 503:
            n_busy += 1
            time.sleep(float(answer.headers.get("Retry-After", 1)))
        else:
            n_errors += 1
    connection.close()
    return times, n_busy, n_errors


class Arrivals:
    """Writes images to a folder until the block ends, so many a second."""

    def __init__(self, folder, bodies, rate, name):
        self._folder, self._bodies, self._rate = folder, bodies, rate
        self._name, self._files, self._written = name, [], {}
        self._n_kept = round(rate * KEPT_SECONDS)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _write(self):
        while self._rate and not self._done.wait(1 / self._rate):
            n = len(self._files)
            self._files.append(self._folder / f"{self._name}_{n:06d}.png")
            self._files[-1].write_bytes(self._bodies[n % len(self._bodies)])
            self._written[self._files[-1].name] = time.time()
            if n >= self._n_kept:
                self._files[n - self._n_kept].unlink()

    def describe(self, images, seconds):
        """Return columns of a table, of the images that a line has seen by now."""
        written = self._written
        waits = [x["time"] - written[x["name"]] for x in images if x["name"] in written]
        row = {"arrived a s": len(written) / seconds, "seen a s": len(waits) / seconds}
        for percentile in PERCENTILES:
            value = float(np.percentile(waits, percentile)) if waits else None
            row[f"{percentile}% s"] = value
        return row

    def count(self, port, line=""):
        """Wait until all is seen that can be; return columns of a table."""
        names, end = Counter(), time.monotonic() + 60
        while len(names) < len(self._files) and time.monotonic() < end:
            time.sleep(1)
            found = (x["name"] for x in list_images(port, line))
            names = Counter(x for x in found if x.startswith(self._name))
        n_rows = [names[file.name] for file in self._files]
        twice = sum(n > 1 for n in n_rows)
        return {"arrived": len(n_rows), "lost": n_rows.count(0), "twice": twice}


def list_images(port, line=""):
    """Return all images that a line has seen, the newest first."""
    images, before = [], 10**17
    while True:
        found = ask(port, f"{line}/api/images?before={before}")["images"]
        if not found:
            return images
        images += found
        before = images[-1]["id"]


def ask(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        return json.load(answer)


@contextmanager
def harass(port):
    """Let clients that mean no good come and go until the block ends."""
    done = threading.Event()
    acts = [say_nothing, send_half, send_without_end, send_nonsense]
    threads = [threading.Thread(target=act, args=(port, done)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def say_nothing(port, done, every=0.06, said=b""):
    """Open connections, a thousand in a minute, and say nothing more."""
    held = deque()
    while not done.wait(every):
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), 5))
            held[-1].sendall(said)
        if len(held) > N_HELD:
            held.popleft().close()
    for connection in held:
        connection.close()


def send_half(port, done):
    said = b"POST /inspect HTTP/1.1\r\nHost: localhost\r\nX-"
    say_nothing(port, done, 0.5, said)


def send_without_end(port, done):
    while not done.wait(0.5):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as one:
            one.sendall(
                b"POST /inspect HTTP/1.1\r\nHost: localhost\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            while not done.is_set():
                one.sendall(b"10000\r\n" + bytes(2**16) + b"\r\n")


def send_nonsense(port, done):
    rng = np.random.default_rng(0)
    while not done.wait(0.05):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/inspect", rng.bytes(10_000))
            connection.getresponse().read()
        connection.close()


def summarize(name, times, n_busy, n_errors, seconds, memory=None, n_each=1):
    row = {"way": name, "images a s": n_each * len(times) / seconds}
    for percentile in PERCENTILES:
        value = 1000 * float(np.percentile(times, percentile)) if times else None
        row[f"{percentile}% ms"] = value
    row |= {"busy": n_busy, "errors": n_errors}
    row |= memory.summarize() if memory else {"MB": None, "growth %": None}
    return row | dict.fromkeys(("arrived", "lost", "twice"))


if __name__ == "__main__":
    main()
