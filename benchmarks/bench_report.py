"""A report: of many images, and of photographs.

Of many images: the time to write it, its size, and until a browser shows it.

Synthetic images are inspected without training, and repeated up to the number asked
for, since inspecting them is not what is measured. The browser is chromium, if there is
one: from opening the file until all is sorted, counted and listed.

Of photographs, with --photographs: how much longer the command takes with maps and a
report than without, both in turn. They are JPEGs of 12 megapixels, with defects on a
fraction of them, inspected at 256 x 256 pixels.

Example: python benchmarks/bench_report.py --images 2000
         python benchmarks/bench_report.py --photographs 12
"""

import contextlib
import io
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from _common import machine_name, make_parser, print_json, print_table, stopwatch
from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd._cli import main as run_command
from skpatchsvdd._report import Page
from skpatchsvdd.datasets import make_textures

# Rows and columns of a photograph.
PHOTOGRAPH = 3000, 4000


def main():
    args = parse_arguments()
    measure = measure_photographs if args.photographs else measure_many
    row = measure(args)
    print(f"{machine_name('cpu')}\n")
    print_table([row])
    print_json(machine=machine_name("cpu"), **row)


def measure_many(args):
    """Return figures of a report of many images."""
    made = {"kind": "gear", "image_size": args.size}
    train = make_textures(args.different, random_state=0, **made)
    test = make_textures(
        args.different, anomaly_fraction=0.5, random_state=1, **made
    ).images
    est = PatchSVDD(max_iter=0, random_state=0).fit(train.images)
    results = est.inspect(test)
    page = Page(est, "Many images")
    n_times = max(args.images // args.different, 1)
    with stopwatch() as add_s:
        page.add(test, results)
    page._images.extend(list(page._images) * (n_times - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        with stopwatch() as write_s:
            page.write(path)
        row = {
            "images": n_times * args.different,
            "ms an image": 1000 * add_s[0] / args.different,
            "write s": write_s[0],
            "MB": path.stat().st_size / 1e6,
            "shown after s": open_in_browser(path),
        }
    return row


def measure_photographs(args):
    """Return the times of the command without and with maps and a report."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        train = write_photographs(folder / "good", args.train, 0, 0)
        write_photographs(folder / "new", args.photographs, args.anomaly_fraction, 1)
        est = PatchSVDD(image_size=256, max_iter=0, random_state=0).fit(train)
        est.save(folder / "part.model")
        without, complete = [], []
        for _ in range(args.repeats):
            without.append(inspect(folder, "--no-maps", "--no-report"))
            complete.append(inspect(folder))
    ratios = np.divide(complete, without)
    return {
        "photographs": args.photographs,
        "without s": float(np.median(without)),
        "with s": float(np.median(complete)),
        "ratio": float(np.median(ratios)),
    }


def write_photographs(folder, n_images, anomaly_fraction, random_state):
    """Write synthetic images, enlarged and noisy, as JPEGs; return their names."""
    folder.mkdir()
    rng = np.random.default_rng(random_state)
    images = make_textures(
        n_images,
        kind="gear",
        anomaly_fraction=anomaly_fraction,
        image_size=256,
        random_state=random_state,
    ).images
    files = [folder / f"photograph_{i}.jpg" for i in range(n_images)]
    for file, image in zip(files, images, strict=True):
        large = Image.fromarray(image).resize(PHOTOGRAPH[::-1])
        noise = rng.integers(-6, 7, (*PHOTOGRAPH, 1), dtype=np.int16)
        pixels = np.clip(np.asarray(large) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(file, quality=92)
    return files


def inspect(folder, *options):
    """Return the seconds that the command takes."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = ["inspect", folder / "part.model", folder / "new", "-o", out, *options]
    with stopwatch() as seconds, contextlib.redirect_stdout(io.StringIO()):
        run_command(list(map(str, command)))
    return seconds[0]


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--different", type=int, default=40, help="not repeated")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--photographs", type=int, default=0)
    parser.add_argument("--anomaly-fraction", type=float, default=0.5)
    parser.add_argument("--train", type=int, default=10, help="photographs learnt from")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def open_in_browser(path):
    """Return the seconds until a browser shows a page, or nan without a browser."""
    browser = shutil.which("chromium")
    if browser is None:
        return float("nan")
    text = path.read_text("utf-8")
    said = "<script>document.body.dataset.shown = performance.now()</script></body>"
    path.write_text(text.replace("</body>", said), "utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    profile = f"--user-data-dir={path.parent / 'profile'}"
    done = subprocess.run(
        [*command, profile, path.as_uri()], capture_output=True, text=True, check=True
    )
    return float(re.search(r'data-shown="([\d.]+)"', done.stdout)[1]) / 1000


if __name__ == "__main__":
    main()
