"""A station for an hour: images lost or judged twice, memory, /health, kill -9.

One server has four lines, each with --arrivals images a second: two folders, of which
images are removed after 100 seconds, a video, and a camera that is cut for ten seconds
and comes back, --cuts times: by RTSP if there is a server (see _rtsp.py), or else an
HTTP stream. In the first half the server is killed with SIGKILL and started again,
--kills times. "lost" are images of a folder that a line has no row of in the end,
"twice" those with more. Memory is what the server has for itself, in the second half:
the median of the first quarter after a warm-up of a quarter of it, and of the last
one. /health is asked ten times a second, except while the server starts.

Example: python benchmarks/bench_reliability.py --minutes 10
"""

import http.server
import itertools
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from _common import machine_name, make_parser, print_json, print_table
from _rtsp import has_rtsp, running_rtsp
from bench_load import read_memory
from bench_serve import Arrivals, ask, encode, list_images
from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures

FOLDERS = ("one", "two")
CUT_SECONDS, EVERY = 10, 0.1


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        folder = Path(folder)
        camera = Camera(folder / "camera", free_port())
        bodies = make_station(folder, camera.address, args)
        camera.start()
        stack.callback(camera.cut)
        arrivals = [Arrivals(folder / x, bodies, args.arrivals, x) for x in FOLDERS]
        server = Server(folder / "station.toml", args.device)
        stack.callback(server.stop)
        watch = stack.enter_context(Watch(server))
        with ExitStack() as arriving:
            for one in arrivals:
                arriving.enter_context(one)
            seconds = 60 * args.minutes
            events = plan(seconds, args.kills, args.cuts, server, camera)
            begin = time.monotonic()
            for due, act in sorted(events, key=lambda x: x[0]):
                time.sleep(max(begin + due - time.monotonic(), 0))
                act()
        rows = [
            {"line": x} | one.count(server.port, f"/lines/{x}")
            for x, one in zip(FOLDERS, arrivals, strict=True)
        ]
        rows += [describe(server, x) for x in ("video", "camera")]
        totals = watch.summarize(begin + seconds / 2, begin + seconds)
    machine = machine_name("cpu")
    totals |= {"kills": args.kills, "cuts": args.cuts, "camera": camera.kind}
    print(f"{machine}\n")
    print_table(rows)
    print_table([totals])
    print_json(machine=machine, minutes=args.minutes, rows=rows, **totals)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--arrivals", type=float, default=0.1, help="a second, each")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--images", type=int, default=40, help="to learn from")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def make_station(folder, address, args):
    """Write models, a video, the pictures of a camera and the file of a station.

    Returns the bytes of images that can arrive.
    """
    made = {"image_size": args.size}
    good = make_textures(args.images, random_state=0, **made).images
    new = make_textures(16, anomaly_fraction=0.2, random_state=1, **made).images
    est = PatchSVDD(max_iter=0, random_state=0, device=args.device).fit(good)
    (folder / "camera").mkdir()
    for i, image in enumerate(new):
        Image.fromarray(image).save(folder / "camera" / f"{i}.jpg", quality=90)
    write_video(folder / "belt.avi", new, rate=5, n=round(5 * 60 * args.minutes))
    sources = dict.fromkeys(FOLDERS) | {"video": "belt.avi", "camera": address}
    text = ""
    for name, source in sources.items():
        est.save(folder / f"{name}.model")
        if source is None:
            (folder / name).mkdir()
        text += f'[lines.{name}]\nmodel = "{name}.model"\nwhen = {1 / args.arrivals}\n'
        text += f'source = "{source or name}"\n'
    (folder / "station.toml").write_text(text)
    return [encode(x) for x in new]


def write_video(path, images, rate, n):
    import cv2

    height, width = images[0].shape[:2]
    kind = cv2.VideoWriter_fourcc(*"MJPG")
    writer = cv2.VideoWriter(str(path), kind, rate, (width, height))
    for image in itertools.islice(itertools.cycle(images), n):
        writer.write(image[..., ::-1])
    writer.release()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def plan(seconds, n_kills, n_cuts, server, camera):
    """Return pairs of a second and what is done then; at the end nothing."""
    kills = np.linspace(0, seconds / 2, n_kills + 2)[1:-1]
    cuts = np.linspace(0, seconds, n_cuts + 2)[1:-1]
    events = [(x, server.kill) for x in kills] + [(x, camera.cut) for x in cuts]
    events += [(x + CUT_SECONDS, camera.start) for x in cuts]
    return [*events, (seconds, lambda: None)]


class Server:
    """The command serve, of which `process` is None while it starts."""

    def __init__(self, file, device):
        self._command = [sys.executable, "-m", "skpatchsvdd", "serve", "--port"]
        self.port = free_port()
        self._command += [str(self.port), "--device", device, str(file)]
        self.process = None
        self._start()

    def _start(self):
        process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        next(x for x in process.stderr if x.startswith("open http"))
        reading = threading.Thread(target=process.stderr.read, daemon=True)
        reading.start()
        self.process = process

    def kill(self):
        """End it as a power cut would, and start it again."""
        process, self.process = self.process, None
        process.kill()
        process.wait()
        self._start()

    def stop(self):
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


class Camera:
    """A camera on the network, which can be cut."""

    def __init__(self, folder, port):
        self._folder, self._port = folder, port
        self.kind = "RTSP" if has_rtsp() else "HTTP"
        scheme = self.kind.lower()
        self.address = f"{scheme}://127.0.0.1:{port}/stream"
        self._stack = None

    def start(self):
        """Send pictures, to whoever asks."""
        run = running_rtsp if self.kind == "RTSP" else running_http
        self._stack = ExitStack()
        self._stack.enter_context(run(self._folder, self._port))

    def cut(self):
        """End all that it sends."""
        self._stack.close()


@contextmanager
def running_http(folder, port, rate=5):
    """Serve the pictures of a folder as a stream until the block ends."""
    bodies = [x.read_bytes() for x in sorted(folder.glob("*.jpg"))]
    done = threading.Event()

    class Stream(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            kind = "multipart/x-mixed-replace; boundary=frame"
            self.send_header("Content-Type", kind)
            self.end_headers()
            for body in itertools.cycle(bodies):
                length = f"Content-Length: {len(body)}\r\n\r\n".encode()
                head = b"--frame\r\nContent-Type: image/jpeg\r\n" + length
                try:
                    self.wfile.write(head + body + b"\r\n")
                except OSError:
                    return
                if done.wait(1 / rate):
                    return

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Stream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        server.shutdown()
        server.server_close()


class Watch:
    """Asks a server for /health and looks at its memory until the block ends."""

    def __init__(self, server):
        self._server, self._done = server, threading.Event()
        self._times, self._memory, self._failed = [], [], 0
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _watch(self):
        while not self._done.wait(EVERY):
            process = self._server.process
            if process is None:
                continue
            start = time.perf_counter()
            try:
                ask(self._server.port, "/health")
            except OSError:
                self._failed += self._server.process is process
                continue
            self._times.append(time.perf_counter() - start)
            if len(self._times) % 10 == 0:
                self._memory.append((time.monotonic(), read_memory(process.pid)))

    def summarize(self, start, end):
        """Return columns of a table: /health, and memory between two times."""
        warm = start + (end - start) / 4
        quarter = (end - warm) / 4
        first, last = (
            float(np.median([y for x, y in self._memory if t <= x <= t + quarter]))
            for t in (warm, end - quarter)
        )
        return {
            "/health 99% ms": 1000 * float(np.percentile(self._times, 99)),
            "/health unanswered": self._failed,
            "MB after warm-up": first / 1e6,
            "MB at the end": last / 1e6,
            "growth %": 100 * (last / first - 1),
        }


def describe(server, name):
    images = list_images(server.port, f"/lines/{name}")
    twice = sum(n > 1 for n in Counter(x["name"] for x in images).values())
    return {"line": name, "arrived": len(images), "lost": None, "twice": twice}


if __name__ == "__main__":
    main()
