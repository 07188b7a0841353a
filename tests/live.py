"""Servers of the command serve, in a process or in threads, and a client, for tests."""

import http.client
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

from PIL import Image
from settings import SEED

from skpatchsvdd._cli.start import make_parser
from skpatchsvdd._images import limited_pixels
from skpatchsvdd._serve.server import serving
from skpatchsvdd.datasets import make_textures

PATIENCE = 90


@contextmanager
def serve(model, *options, env=None):
    """Start the command serve on a free port; yield a `Client` of it."""
    command = [sys.executable, "-m", "skpatchsvdd", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--device", "cpu", str(model), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
    )
    try:
        line = _read_line(process, b"open http")
        port = line.partition(b"://")[2].split(b"/")[0].rpartition(b":")[2]
        yield Client(int(port), process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.stdout.close()
            process.stderr.close()


@contextmanager
def serve_here(model, *options, token=None):
    """Start the parts of the command serve in threads; yield a `Client`."""
    command = ["serve", "--device", "cpu", str(model), *map(str, options)]
    args = make_parser().parse_args(command)
    with limited_pixels(args.max_pixels), serving(args, token) as server:
        with running(server) as port:
            yield Client(port)
        assert not server.has_failed


@contextmanager
def running(server):
    """Let a server of uvicorn's answer in a thread; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


def wait_until(condition, message=""):
    """Wait until a function returns what is true; return that."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, message
        time.sleep(0.01)
    return found


def make_photos():
    """Make normal images of 48 x 48, grey, and one with a black square."""
    images = make_textures(6, image_size=48, random_state=SEED + 1).images[..., 0]
    damaged = images[0].copy()
    damaged[10:30, 10:30] = 0
    return images, damaged


def to_bytes(image, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, kind)
    return stream.getvalue()


def put(folder, name, image):
    """Let an image arrive whole."""
    partial = folder / ".partial"
    partial.write_bytes(to_bytes(image))
    partial.rename(folder / name)


class Client:
    """Asks a server, and waits until it says what is expected."""

    def __init__(self, port, process=None):
        self.port, self.process = port, process
        self.url = f"http://127.0.0.1:{port}/"

    def ask(self, path, body=None, method=None, **headers):
        """Return status, headers and body of an answer; see `http.client`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, PATIENCE)
        try:
            method = method or ("GET" if body is None else "POST")
            headers = {x.replace("_", "-"): y for x, y in headers.items()}
            with suppress(BrokenPipeError, ConnectionResetError):
                # A server that refuses a body does not wait for the end of it.
                connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path):
        """Return the JSON at a path."""
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def post(self, path, **content):
        """Send JSON; return the status and the answer."""
        kind = {"Content_Type": "application/json"}
        status, _, body = self.ask(path, json.dumps(content), **kind)
        return status, json.loads(body)

    def refuses(self, path, words, **content):
        """Check that what is posted is refused with some words."""
        status, answer = self.post(path, **content)
        assert (status, words in answer["error"]) == (409, True), answer

    def wait(self, condition):
        """Wait until a condition of the state holds; return the state."""

        def look():
            assert self.process is None or self.process.poll() is None
            state = self.get("/api/state")
            return state if condition(state) else None

        return wait_until(look)

    def wait_for(self, n_images):
        """Wait until so many images were inspected."""
        return self.wait(lambda x: sum(x["counts"].values()) >= n_images)

    def kill(self):
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()


def _read_line(process, wanted):
    """Return the first line of stderr that has some text."""
    text, end = b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if select.select([process.stderr], [], [], 1)[0]:
            chunk = os.read(process.stderr.fileno(), 4096)
            assert chunk, text
            text += chunk
        found = [x for x in text.split(b"\n")[:-1] if wanted in x]
        if found:
            return found[0]
    raise AssertionError(text)
