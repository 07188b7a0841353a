"""Draw report.jpg, live.jpg and station.jpg: synthetic images in a report and live.

Needs chromium, and the extras images and serve. Example: python docs/make_screenshot.py
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.report import write_report

DOCS = Path(__file__).absolute().parent
SIZE = 1400, 970  # of the window: the head of the page and two rows of images


def main():
    """Write a page and serve another, let a browser draw them, keep the pictures."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("a screenshot needs chromium. Install it, and call again.")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that names are short
        n_images = write_page(Path("report.html"))
        page = (Path(folder) / "report.html").as_uri()
        take_screenshot(browser, Path(folder), page, "report.jpg")
        with serve(n_images) as address:
            take_screenshot(browser, Path(folder), address, "live.jpg")
        with serve_station(n_images) as address:
            take_screenshot(browser, Path(folder), address, "station.jpg", height=520)
        os.chdir(DOCS)


def write_page(path):
    """Learn from synthetic images and report on others; return how many."""
    made = {"kind": "gear", "image_size": 192}
    train = make_textures(30, random_state=0, **made).images
    test = make_textures(24, anomaly_fraction=0.4, random_state=1, **made).images
    good, today = save(train, "good"), save(test, "today")
    est = PatchSVDD(max_iter=0, false_alarm_rate=0.05, random_state=0).fit(good)
    write_report(est, today, path, title="Inspection by part.model")
    est.save("part.model")
    return len(today)


@contextmanager
def serve(n_images):
    """Yield the address of the live page, when so many images were inspected."""
    with start(["part.model", "--watch", "today"]) as address:
        wait_for(f"{address}api/state", n_images)
        yield address


@contextmanager
def serve_station(n_images):
    """Yield the address of a station: three lines that run, and two that are broken."""
    text = ""
    for name, source in (
        *(("front", "today"), ("back", "today"), ("left", "today")),
        *(("belt", "rtsp://user:password@127.0.0.1:9/stream"), ("oven", "none")),
    ):
        text += f'[lines.{name}]\nmodel = "{name}.model"\nsource = "{source}"\n'
        if name != "oven":
            shutil.copy("part.model", f"{name}.model")
    Path("station.toml").write_text(text)
    with start(["station.toml"]) as address:
        for name in ("front", "back", "left"):
            wait_for(f"{address}lines/{name}/api/state", n_images)
        yield address


@contextmanager
def start(options):
    """Yield the address of a server."""
    command = [sys.executable, "-m", "skpatchsvdd", "serve", "--port", "0", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = next(x for x in server.stderr if "http" in x).split()[1]
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        server.stderr.close()


def wait_for(state, n_images):
    """Wait until a line, of which this is the address, has inspected its images."""
    n_seen = 0
    while n_seen < n_images:
        time.sleep(1)
        with suppress(OSError), urllib.request.urlopen(state) as answer:  # not open yet
            n_seen = sum(json.load(answer)["counts"].values())


def save(images, folder):
    """Write images as files, and return their names."""
    Path(folder).mkdir()
    files = [f"{folder}/part_{i:03d}.png" for i in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    return files


def take_screenshot(browser, folder, page, name, height=SIZE[1]):
    """Let a browser draw a page, and keep the picture among the documents."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-background-networking", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000"]
    command += [f"--window-size={SIZE[0]},{height}", "--screenshot=screenshot.png"]
    subprocess.run([*command, page], check=True, capture_output=True, timeout=120)
    with Image.open("screenshot.png") as picture:
        picture.convert("RGB").save(DOCS / name, quality=75, optimize=True)
    print(f"wrote {name}: {(DOCS / name).stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
