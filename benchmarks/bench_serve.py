"""The command serve under load: requests a second, how long they take, and memory.

First plain calls of `inspect`, one image at a time and 16, in this process; then a
server in a process of its own, asked by more and more clients at a time, each of which
sends the next image when it has an answer. "busy" are answers of 503, after which a
client waits as long as it is told to. With --hostile a crowd is there besides, during
the last row: connections that say nothing, half of a request, requests without end, and
bytes that are no image. Memory is what the server has for itself, and its growth that
from the first to the last quarter of the time. Synthetic images, without training.

Example: python benchmarks/bench_serve.py --seconds 30 --hostile
"""

import functools
import http.client
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np
from _common import machine_name, make_parser, print_json, print_table
from _hooks import check_device
from bench_load import Memory
from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

PERCENTILES = (50, 99, 100)


def main():
    args = parse_arguments()
    made = {"image_size": args.size}
    images = make_textures(args.images, random_state=0, **made).images
    new = make_textures(16, anomaly_fraction=0.5, random_state=1, **made).images
    device = check_device(args.device)
    est = PatchSVDD(max_iter=0, random_state=0, device=str(device)).fit(images)
    rows = [call_plainly(est, new, n, args.seconds) for n in (1, 16)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.model"
        est.save(path)
        with start_server(path, device) as (port, process):
            bodies = [encode(x) for x in new]
            load(port, bodies, 4, 3)  # what is made on first use
            for n in args.clients:
                is_last = args.hostile and n == args.clients[-1]
                crowd = harass(port) if is_last else nullcontext()
                with crowd, Memory([process.pid], args.seconds) as memory:
                    found = load(port, bodies, n, args.seconds)
                name = f"{n} clients" + ", a crowd besides" * is_last
                rows.append(summarize(name, *found, args.seconds, memory))
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
def start_server(path, device):
    """Yield the port of a server, and its process."""
    command = [sys.executable, "-m", "skpatchsvdd", "serve", str(path), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--device", str(device)],
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


def load(port, bodies, n_clients, seconds):
    """Let clients ask; return seconds of answers, and how many were busy or failed."""
    end = time.perf_counter() + seconds
    with ThreadPoolExecutor(n_clients) as pool:
        ask = functools.partial(keep_asking, port, bodies, end)
        calls = [pool.submit(ask, i) for i in range(n_clients)]
        parts = [call.result() for call in calls]
    times = [x for own, _, _ in parts for x in own]
    return times, sum(x for _, x, _ in parts), sum(x for _, _, x in parts)


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


def say_nothing(port, done):
    """Open connections, a thousand in a minute, and say nothing."""
    held = []
    while not done.wait(0.06):
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), 5))
    for connection in held:
        connection.close()


def send_half(port, done):
    held = []
    while not done.wait(0.5):
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), 5))
            held[-1].sendall(b"POST /inspect HTTP/1.1\r\nHost: localhost\r\nX-")
    for connection in held:
        connection.close()


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
    row |= {"busy": n_busy, "errors": n_errors, "MB": None, "growth %": None}
    if memory is not None and memory.samples:
        samples = np.array(memory.samples)
        quarter = max(len(samples) // 4, 1)
        first, last = np.median(samples[:quarter]), np.median(samples[-quarter:])
        row |= {"MB": last / 1e6, "growth %": 100 * float(last / first - 1)}
    return row


if __name__ == "__main__":
    main()
