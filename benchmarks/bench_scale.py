"""How fit grows with the number of images: time, memory, size of the model.

Synthetic images are written as files, all different: windows of a few large surfaces,
each in a light of its own. For each number of them one process fits to the list of
files and saves the model, and another one loads it and scores a few other files. Peak
memory is that of a process as a whole, on a GPU also what torch holds there. The last
table says how each figure grows from one number of images to the next: a power of 1 is
as fast as the number itself, 0 not at all.

100,000 files of 256 x 256 take 2 GB of disk. With --photo-size files are larger, and
the estimator resizes them.

Example: python benchmarks/bench_scale.py --images 1000 10000 100000 --bank-size 4000
"""

import itertools
import math
import tempfile
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import torch
from _common import machine_name, make_parser, print_json, print_table, stopwatch
from _hooks import check_device
from bench_memory import alone, do_nothing
from PIL import Image

import skpatchsvdd
from skpatchsvdd.datasets import make_textures

N_SURFACES = 8
QUALITY = 85  # of the files: a hundred thousand take 2 GB
BATCH = 512  # files that a process writes at a time


def main():
    args = parse_arguments()
    device = check_device(args.device)
    machine = machine_name(device)
    params = {
        "image_size": args.image_size,
        "bank_size": args.bank_size,
        "max_iter": args.steps,
        "training__batch_size": args.batch_size,
        "strides": args.strides,
        "device": str(device),
        "random_state": 0,
        "verbose": int(args.verbose),
    }
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        files = write_files(Path(folder), max(args.images) + args.n_scored, args)
        seen, new = files[: max(args.images)], files[-args.n_scored :]
        idle = alone(do_nothing)["peak MB"]
        for n_images in args.images:
            report, model = Path(folder, "report"), Path(folder, "part.model")
            fitted = alone(fit, seen[:n_images], params, model, report)
            scored = alone(score, model, new, report)
            seconds, score_s, gpu = np.loadtxt(report).tolist()
            rows.append(
                {
                    "images": n_images,
                    "fit s": seconds,
                    "fit ms an image": 1000 * seconds / n_images,
                    "fit peak MB": fitted["peak MB"],
                    "fit GPU MB": gpu,
                    "model MB": model.stat().st_size / 1e6,
                    "score ms an image": 1000 * score_s / len(new),
                    "score peak MB": scored["peak MB"],
                }
            )
            print_table(rows[-1:])
    print(f"\n{machine}; {idle:.0f} MB with nothing done\n")
    print_table(rows)
    growth = [find_growth(*pair) for pair in itertools.pairwise(rows)]
    if growth:
        print("\npowers of the number of images, and bytes an image\n")
        print_table(growth)
    print_json(machine=machine, idle=idle, settings=params, rows=rows, growth=growth)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--photo-size", type=int, help="of the files, if larger")
    parser.add_argument("--bank-size", type=int, default=20_000, help="of each scale")
    parser.add_argument("--steps", type=int, default=20, help="of training")
    parser.add_argument("--batch-size", type=int, default=2, help="of training")
    parser.add_argument("--strides", type=int, nargs=2, help="wider ones are quicker")
    parser.add_argument("--n-scored", type=int, default=50, help="new files to score")
    parser.add_argument("--folder", help="where the files are written for the while")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--verbose", action="store_true", help="say how far fit is")
    return parser.parse_args()


def write_files(folder, n_files, args):
    """Write images that are all different; return their paths."""
    size, file_size = args.image_size, args.photo_size or args.image_size
    surfaces = make_textures(N_SURFACES, image_size=3 * size, random_state=0).images
    paths = [str(folder / f"{i // 1000:03}" / f"{i:06}.jpg") for i in range(n_files)]
    for parent in {Path(path).parent for path in paths}:
        parent.mkdir()
    # Not by threads, which mostly wait for each other.
    with stopwatch() as seconds, joblib.Parallel(n_jobs=-1) as parallel:
        parallel(
            joblib.delayed(write_some)(
                surfaces, size, file_size, paths[start : start + BATCH], i
            )
            for i, start in enumerate(range(0, n_files, BATCH))
        )
    print(f"{n_files:,} files written in {seconds[0]:.0f} s", flush=True)
    return paths


def write_some(surfaces, size, file_size, paths, seed):
    """Write windows of surfaces, each in a light of its own, enlarged to a size."""
    rng = np.random.default_rng(seed)
    for path in paths:
        surface, row, col = rng.integers([len(surfaces), 2 * size, 2 * size])
        window = surfaces[surface, row : row + size, col : col + size]
        pixels = (rng.uniform(0.9, 1.1) * window).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(pixels).resize((file_size, file_size))
        image.save(path, quality=QUALITY)


def fit(paths, params, model, report):
    """Fit to files, save the model, and leave the seconds it took and a GPU's MB."""
    est = skpatchsvdd.PatchSVDD().set_params(**params)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may fail
        est.fit(paths)
    seconds = time.perf_counter() - start
    est.save(model)
    used = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    np.savetxt(report, [seconds, 0, used / 1e6])


def score(model, paths, report):
    """Score files with a saved model, and note the seconds."""
    est = skpatchsvdd.load(model, mmap=True)
    est.score_samples(paths[:1])
    with stopwatch() as seconds:
        est.score_samples(paths)
    figures = np.loadtxt(report)
    figures[1] = seconds[0]
    np.savetxt(report, figures)


def find_growth(former, row):
    """Return how figures grow from one number of images to the next."""
    times = math.log(row["images"] / former["images"])
    powers = {
        name: math.log(max(row[name], 1e-9) / max(former[name], 1e-9)) / times
        for name in ("fit s", "fit peak MB", "model MB", "score ms an image")
    }
    more = row["images"] - former["images"]
    bytes_each = {
        f"{name[:-3]} bytes an image": 1e6 * (row[name] - former[name]) / more
        for name in ("fit peak MB", "model MB")
    }
    return {"images": f"{former['images']} to {row['images']}", **powers, **bytes_each}


if __name__ == "__main__":
    main()
