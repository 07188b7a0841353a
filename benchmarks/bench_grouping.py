"""Whether fit notices images that belong together, and only these.

For every category: its training images in the order of their files; the same shuffled;
and tiles cut from some of them, image by image, in order and shuffled. "shift" is by
how many standard deviations images look stranger without their neighbours in X than
with them, beyond random orders; "p" the p-value of that. fit warns where p is at most
0.01 and the shift at least 0.7.

Example: python benchmarks/bench_grouping.py --data DATA
"""

from pathlib import Path

import numpy as np
from _common import (
    find_categories,
    machine_name,
    make_parser,
    print_json,
    print_table,
    stopwatch,
)
from _hooks import check_images, measure_grouping

from skpatchsvdd.datasets import load_mvtec_ad


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all if not given")
    parser.add_argument("--images", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--tiles", type=int, default=4, help="along each axis")
    parser.add_argument("--seed", type=int, default=0, help="of shuffling")
    args = parser.parse_args()
    if not Path(args.data).is_dir():
        parser.error(f"--data: there is no folder {args.data}")
    rows = []
    for category in find_categories(args.data, args.categories):
        images = load_mvtec_ad(args.data, category).images
        sets = {"files": images}
        for n in args.images:
            sets[f"{n} x {args.tiles**2} tiles"] = cut_tiles(images, n, args.tiles)
        for name, some in sets.items():
            rows += measure(category, name, some, np.random.RandomState(args.seed))
    print(f"\n{machine_name('cpu')}\n")
    print_table(rows)
    print_json(machine=machine_name("cpu"), rows=rows)


def cut_tiles(images, n_images, n_tiles):
    """Cut some images, spread over all, into tiles, image by image."""
    chosen = images[:: max(len(images) // n_images, 1)][:n_images]
    lines = [x for image in chosen for x in np.array_split(image, n_tiles)]
    tiles = [x for line in lines for x in np.array_split(line, n_tiles, axis=1)]
    height, width = np.min([x.shape[:2] for x in tiles], axis=0)
    return np.stack([x[:height, :width] for x in tiles])


def measure(category, name, images, rng):
    """Measure images as they are ordered, and shuffled."""
    shuffled = images[rng.permutation(len(images))]
    rows = []
    for order, some in (("as it is", images), ("shuffled", shuffled)):
        with stopwatch() as seconds:
            found = measure_grouping(check_images(some))
        row = {"category": category, "images": name, "order": order}
        row |= {"n": len(some), "shift": found.shift, "p": found.p_value}
        rows.append(row | {"warns": found.is_harmful, "s": seconds[0]})
    return rows


if __name__ == "__main__":
    main()
