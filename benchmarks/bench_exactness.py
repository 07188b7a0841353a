"""How exact the exact search is: the largest error against float64, over all rows.

Banks made to mislead a search by rounded numbers, and with --data also those of a real
category, are searched as the estimator does on this device. The same distances are
found from differences in float64, comparing with every row. The table says, for each
bank, the largest relative error of a distance, and how many are wrong by more than a
hundred-thousandth: a row that is nearer by less than that may be missed.

- noise: nothing to cluster;
- clusters: far from each other, each much smaller than the distance between any two;
- far from the origin: many times as far as rows are from each other;
- almost equal: rows that differ by about a ten-thousandth of their length;
- copies: each row many times, and queries that are rows;
- all lengths: rows and queries from a thousandth to a thousand times as long;
- on a sphere: rows that are almost equally far from all queries;
- far queries: many times as far from rows as these are from each other.

Example: python benchmarks/bench_exactness.py --data DATA --category mvtec/bottle
"""

import numpy as np
import torch
from _common import machine_name, make_parser, print_json, print_table
from _hooks import Bank, check_device, check_images, make_index, parts_of

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad

N_NUMBERS = 2**24  # differences held at a time
WRONG = 1e-5


def main():
    args = parse_arguments()
    device = check_device(args.device)
    banks = make_banks(args)
    if args.data:
        banks |= load_banks(args, device)
    rows = [{"bank": name, **compare(*bank, device)} for name, bank in banks.items()]
    machine = machine_name(device)
    print(f"\n{machine}\n")
    print_table(rows)
    print_json(machine=machine, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=50_000, help="of a made bank")
    parser.add_argument("--queries", type=int, default=2000, help="for each bank")
    parser.add_argument("--features", type=int, default=66, help="of a made bank")
    parser.add_argument("--data", help="folder of a data set")
    parser.add_argument("--category", help="such as mvtec/bottle")
    parser.add_argument("--n-train", type=int, help="images; all if not given")
    parser.add_argument("--max-iter", type=int, help="training steps")
    parser.add_argument("--image-size", type=int, help="resize images to this")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if (args.data is None) != (args.category is None):
        parser.error("--data and --category go together")
    return args


def make_banks(args):
    """Return made banks, (rows, queries) by name."""
    rng = np.random.default_rng(0)
    n, m, d = args.rows, args.queries, args.features

    def draw(n_rows, spread=1.0):
        return spread * rng.standard_normal((n_rows, d))

    def spread_out(x):
        lengths = np.exp(rng.uniform(np.log(1e-3), np.log(1e3), (len(x), 1)))
        return lengths * x

    centers = draw(64)
    nearby = centers[rng.integers(64, size=n)] + draw(n, 0.01)
    one = draw(1)
    few = draw(n // 50)
    sphere = draw(n)
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    banks = {
        "noise": (draw(n), draw(m)),
        "clusters": (nearby, centers[rng.integers(64, size=m)] + draw(m, 0.01)),
        "far from the origin": (100 + draw(n), 100 + draw(m)),
        "almost equal": (one + draw(n, 1e-4), one + draw(m, 1e-4)),
        "copies": (few.repeat(50, axis=0), few[rng.integers(len(few), size=m)]),
        "all lengths": (spread_out(draw(n)), spread_out(draw(m))),
        "on a sphere": (sphere, draw(m, 1e-3)),
        "far queries": (draw(n, 0.01), 1 + draw(m)),
    }
    return {
        name: tuple(x.astype(np.float32) for x in pair) for name, pair in banks.items()
    }


def load_banks(args, device):
    """Fit to a category; return its banks, and patches of its test images."""
    size = {"image_size": args.image_size}
    train = load_mvtec_ad(args.data, args.category, **size).images[: args.n_train]
    test = load_mvtec_ad(args.data, args.category, split="test", **size).images
    steps = {} if args.max_iter is None else {"max_iter": args.max_iter}
    est = PatchSVDD(
        encoder="hierarchical", random_state=0, device=device.type, **steps
    ).fit(train)
    dense, units, indexes = parts_of(est)
    scales = [[] for _ in units]
    for _, batch in check_images(test).batches(dense.batch_size):
        features = dense.add_positions(dense.encode(batch), units)
        for patches, x in zip(scales, features, strict=True):
            patches.append(x.flatten(0, 2).cpu().numpy())
    rng, banks = np.random.default_rng(0), {}
    for k, index, patches in zip(est.patch_sizes_, indexes, scales, strict=True):
        queries = rng.permutation(np.concatenate(patches))[: args.queries]
        banks[f"{args.category}, {k}"] = index.bank().rows, queries
    return banks


def compare(rows, queries, device):
    """Search rows in both ways, and say how far the distances are apart."""
    bank = Bank(rows, np.zeros(len(rows), dtype=np.int32))
    index = make_index(bank, "exact", device, None, 0)
    x = torch.from_numpy(queries).to(device)
    found = index.query(x[None], [-1])[0].double().cpu().numpy()
    exact = find_nearest(rows, queries)
    # A copy is at distance 0, and nothing else is right.
    error = np.where(exact > 0, np.abs(found - exact) / np.maximum(exact, 1e-300), 0)
    error[(exact == 0) & (found > 0)] = np.inf
    return {
        "rows": len(rows),
        "queries": len(queries),
        "largest error": float(error.max()),
        "wrong": int((error > WRONG).sum()),
    }


def find_nearest(rows, queries):
    """Return distances to the nearest rows, from differences in float64."""
    rows, queries = (torch.from_numpy(np.array(x)).double() for x in (rows, queries))
    n_each = max(N_NUMBERS // len(rows), 1)
    plain = "donot_use_mm_for_euclid_dist"
    parts = [
        torch.cdist(part, rows, compute_mode=plain).amin(dim=1)
        for part in queries.split(n_each)
    ]
    return torch.cat(parts).numpy()


if __name__ == "__main__":
    main()
