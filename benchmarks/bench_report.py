"""A report of many images: time to write it, its size, and until a browser shows it.

Synthetic images are inspected without training, and repeated up to the number asked
for, since inspecting them is not what is measured. The browser is chromium, if there is
one: from opening the file until all is sorted, counted and listed.

Example: python benchmarks/bench_report.py --images 2000
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from _common import machine_name, make_parser, print_json, print_table, stopwatch

from skpatchsvdd import PatchSVDD
from skpatchsvdd._report import Page
from skpatchsvdd.datasets import make_textures


def main():
    args = parse_arguments()
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
    print(f"{machine_name('cpu')}\n")
    print_table([row])
    print_json(machine=machine_name("cpu"), **row)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--different", type=int, default=40, help="not repeated")
    parser.add_argument("--size", type=int, default=256)
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
