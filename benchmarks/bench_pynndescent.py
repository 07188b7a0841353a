"""What pynndescent's proposals save of an exact search on a CPU.

The patches of a category's training images at the smallest scale, and copies of these
with noise, are searched for patches of test images, image by image, in one thread. For
each size of the bank: the seconds to build pynndescent's index, and the milliseconds of
CPU time of an image by exact search alone, by pynndescent's query, by exact search that
begins with what it proposes, and by one that is told the exact distances: what no
proposals can beat. Last, the share of proposals that are too large.

Example: python benchmarks/bench_pynndescent.py --data DATA --category mvtec/bottle
"""

import os
import time

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
import torch
from _common import machine_name, make_parser, print_json, print_table
from _hooks import Bank, check_images, make_index, parts_of

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad

CPU = torch.device("cpu")
NOISE = 0.15  # of what is added to copies of patches, in deviations
WRONG = 1e-5


def main():
    args = parse_arguments()
    torch.set_num_threads(1)
    patches, queries = load_patches(args)
    rows = [compare(add_noisy(patches, n), queries, args.repeats) for n in args.copies]
    machine = machine_name(CPU)
    print(f"\n{machine}\n")
    print_table(rows)
    print_json(machine=machine, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of a data set")
    parser.add_argument("--category", default="mvtec/bottle")
    parser.add_argument("--n-train", type=int, default=40, help="images of the bank")
    parser.add_argument("--n-test", type=int, default=6, help="images searched for")
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def load_patches(args):
    """Return features of training patches (n, D), and of test images, a list."""
    train = load_mvtec_ad(args.data, args.category, "train", image_size=args.image_size)
    test = load_mvtec_ad(args.data, args.category, "test", image_size=args.image_size)
    est = PatchSVDD(max_iter=0, device="cpu", random_state=0)
    est.fit(train.images[: args.n_train], groups=None)
    dense, units, indexes = parts_of(est)
    step = -(-len(test.images) // args.n_test)
    encoded = dense.encode_stack(check_images(test.images[::step]))
    features = dense.add_positions(encoded, units)[0]
    return indexes[0].bank().rows, list(features.flatten(1, 2)[:, None])


def add_noisy(patches, n):
    """Return patches, and n - 1 noisy copies of each."""
    rng, deviations = np.random.default_rng(0), patches.std(axis=0)
    noisy = [
        patches + NOISE * deviations * rng.standard_normal(patches.shape, np.float32)
        for _ in range(n - 1)
    ]
    return np.concatenate([patches, *noisy])


def compare(patches, queries, n_repeats):
    owners = np.zeros(len(patches), dtype=np.int32)
    exact = make_index(Bank(patches.copy(), owners), "exact", CPU, 1, 0)
    begun = time.process_time()
    both = make_index(Bank(patches, owners), "pynndescent", CPU, 1, 0)
    built = time.process_time() - begun
    ways = {
        "exact": lambda x: exact.query(x),
        "pynndescent": lambda x: both._propose(x[0], -1)[None],
        "both": lambda x: both.query(x),
        "told": lambda x: exact.query(x, None, answers[id(x)]),
    }
    answers = {id(x): exact.query(x) for x in queries}
    seconds, n_wrong = dict.fromkeys(ways, 0.0), 0
    for way, search in ways.items():
        search(queries[0])  # compiles
        for x in queries * n_repeats:
            begun = time.process_time()
            found = search(x)
            seconds[way] += time.process_time() - begun
            is_wrong = found > (1 + WRONG) * answers[id(x)]
            n_wrong += int(is_wrong.sum()) if way == "pynndescent" else 0
    n = n_repeats * len(queries)
    row = {"rows": len(patches), "build s": round(built, 1)}
    row |= {f"{way} ms": round(1e3 * x / n, 1) for way, x in seconds.items()}
    return row | {"too large": round(n_wrong / (n * queries[0].shape[1]), 3)}


if __name__ == "__main__":
    main()
