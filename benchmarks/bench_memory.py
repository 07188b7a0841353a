"""How much memory fit and scoring take at their peak, each in a process of its own.

fit learns from a category's training images. score_samples then reads 50 and 1,000
image files, or as many as --n-files says, batch by batch, and one image of 4000 x 3000
pixels with a model fitted to two such images, of whose patches it keeps 16,000. The
last column is what a process takes with all packages imported and nothing done.

Example: python benchmarks/bench_memory.py --data DATA --category mvtec/bottle
"""

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import joblib
import numpy as np
from _common import machine_name, make_parser, print_json, print_table
from _hooks import check_device
from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad

LARGE = (3000, 4000)
LARGE_BANK = 16_000


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--category", required=True, help="such as mvtec/bottle")
    parser.add_argument("--max-iter", type=int, default=20, help="training steps")
    parser.add_argument(
        "--n-files", nargs="+", type=int, default=[50, 1000], help="files to score"
    )
    parser.add_argument("--skip-large", action="store_true", help="no large images")
    parser.add_argument("--image-size", type=int, help="resize images to this")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    params = {"max_iter": args.max_iter, "random_state": 0, "device": args.device}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        idle = alone(do_nothing)["peak MB"]
        model = (args.data, args.category, args.image_size, params, folder)
        calls = [("fit", fit, *model, max(args.n_files))]
        calls += [(f"score {n}", score, folder, "model", n) for n in args.n_files]
        if not args.skip_large:
            calls += [
                ("fit, two of 4000 x 3000", fit_large, *model),
                ("score one of 4000 x 3000", score, folder, "large", 1),
            ]
        for name, call, *arguments in calls:
            rows.append({"call": name} | alone(call, *arguments) | {"idle MB": idle})
            print_table(rows[-1:])
    machine = machine_name(check_device(args.device))
    print(f"\n{args.category}, {machine}\n")
    print_table(rows)
    print_json(machine=machine, category=args.category, rows=rows)


def alone(call, *arguments):
    """Run a call in a new process; return its peak memory and time."""
    return run_alone(measure, call, arguments)


def run_alone(call, *arguments):
    """Run a call in a new process; return what it returns."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(call, *arguments).result()


def measure(call, arguments):
    start = time.perf_counter()
    call(*arguments)
    return {"peak MB": peak_memory() / 1e6, "s": time.perf_counter() - start}


def peak_memory():
    """Return the most bytes that this process has had in memory.

    getrusage would count what the process that started this one had.
    """
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return 1024 * int(line.split()[1])


def do_nothing():
    pass


def fit(data, category, image_size, params, folder, n_files):
    """Fit to a category, and leave a model and images to score for later."""
    images = load_mvtec_ad(data, category, image_size=image_size).images
    joblib.dump(PatchSVDD(**params).fit(images), Path(folder, "model.joblib"))
    save_images(folder, "model", images, n_files)


def fit_large(data, category, image_size, params, folder):
    """Fit to two large images, side by side what the category shows."""
    images = load_mvtec_ad(data, category, image_size=image_size).images
    n_rows, n_cols = (
        -(-n // size) for n, size in zip(LARGE, images.shape[1:], strict=False)
    )
    large = []
    for shift in (0, 1, 2):
        tiles = np.resize(
            np.roll(images, shift, axis=0), (n_rows * n_cols, *images.shape[1:])
        )
        tiles = tiles.reshape(n_rows, n_cols, *images.shape[1:])
        rows = [np.concatenate(list(row), axis=1) for row in tiles]
        large.append(np.concatenate(rows)[: LARGE[0], : LARGE[1]])
    est = PatchSVDD(bank_size=LARGE_BANK, **params).fit(np.stack(large[:2]))
    joblib.dump(est, Path(folder, "large.joblib"))
    save_images(folder, "large", np.stack(large[2:]), 1)


def save_images(folder, name, images, n):
    Path(folder, name).mkdir()
    for i in range(n):
        image = images[i % len(images)].copy()
        image[0, 0] ^= 1  # no image that the model knows
        Image.fromarray(image).save(Path(folder, name, f"{i:04}.png"))


def score(folder, name, n):
    """Score image files."""
    est = joblib.load(Path(folder, f"{name}.joblib"))
    paths = sorted(Path(folder, name).iterdir())[:n]
    assert est.score_samples(paths).shape == (n,)


if __name__ == "__main__":
    main()
