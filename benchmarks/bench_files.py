"""Files of a model: time to save and load, and size, beside those of joblib.

Synthetic images, without training; the best of several times each.

Example: python benchmarks/bench_files.py --images 100
"""

import tempfile
from pathlib import Path

import joblib
from _common import machine_name, make_parser, print_json, print_table, stopwatch

import skpatchsvdd
from skpatchsvdd.datasets import make_textures


def main():
    args = parse_arguments()
    images = make_textures(args.images, image_size=args.size, random_state=0).images
    est = skpatchsvdd.PatchSVDD(max_iter=0, random_state=0).fit(images)
    ways = {
        "save, load": (est.save, skpatchsvdd.load),
        "save, load mapped": (est.save, lambda x: skpatchsvdd.load(x, mmap=True)),
        "joblib": (lambda x: joblib.dump(est, x), joblib.load),
    }
    rows = []
    for name, (save, load) in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            saved = [measure(save, path) for _ in range(args.repeats)]
            loaded = [measure(load, path) for _ in range(args.repeats)]
            size = path.stat().st_size / 1e6
        row = {"way": name, "save s": min(saved), "load s": min(loaded), "MB": size}
        rows.append(row)
    n_patches = sum(est.bank_size_.values())
    print(f"{machine_name('cpu')}\n{n_patches:,} patches\n")
    print_table(rows)
    print_json(machine=machine_name("cpu"), patches=n_patches, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def measure(call, path):
    """Return the seconds that a call takes."""
    with stopwatch() as seconds:
        call(path)
    return seconds[0]


if __name__ == "__main__":
    main()
