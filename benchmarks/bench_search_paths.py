"""Whether a fast way of searching earns its place beside the plain one.

For the banks of one category, by scale, all ways of this device find the nearest rows
of the same patches, those of one image and of a batch. The plain way compares every
patch with every row: products in float32 tell which rows may be the nearest, and
differences decide. On a GPU it is also measured with products in TF32, with bounds of
the error that go with them. Beside it stands the search of the package.

For each way: the seconds to make it, the milliseconds for the patches of one image, and
of a batch for each image, and how far distances are from those of the plain way,
relative to these, at most. Then what a user waits for: the milliseconds of
`score_samples` for one image, and of 64 in a call for each image; on a GPU also with
local normal variation found by products in memory, and how much the score of
an image alone differs from that in a call, at most. All of it is repeated with a
reduced bank.

Times are the best of several calls, ways in turn, so that a machine that is shared
slows all of them alike.

Example: python benchmarks/bench_search_paths.py --data DATA
Example: python benchmarks/bench_search_paths.py --data DATA --device cpu --max-iter 0
"""

import copy
import functools
import time
from pathlib import Path

import joblib
import numpy as np
import torch
import torch.nn.functional as F
from _common import machine_name, make_parser, print_json, print_table, stopwatch
from _hooks import check_device, check_images, parts_of

from skpatchsvdd import PatchSVDD
from skpatchsvdd._bank import join_banks, make_index
from skpatchsvdd._bank.clusters import Nearest, product_error
from skpatchsvdd._bank.variation import regress
from skpatchsvdd.datasets import load_mvtec_ad

# Rows whose smallest product is found first.
TILE_ROWS = 256
# Products held at a time.
CPU_PRODUCTS, GPU_PRODUCTS = 2**22, 2**27
# TF32 has ten bits behind the point, and some hardware cuts the others off.
TF32_ERROR = 1.01 * 2.0**-10


def main():
    args = parse_arguments()
    device = torch.zeros(0, device=check_device(args.device)).device  # with a number
    start = time.perf_counter()
    test = load_mvtec_ad(
        args.data, args.category, split="test", image_size=args.image_size
    ).images
    est = fit(args, device)
    print(f"ready after {time.perf_counter() - start:.0f} s", flush=True)
    searches, scores = [], []
    for size in [None, *args.bank_size]:
        model = est if size is None else reduce(est, size, device)
        rows, ways = time_searches(model, test, device, args)
        searches += rows
        scores += time_scores(model, ways, test, device, args)
        print(f"after {time.perf_counter() - start:.0f} s", flush=True)
    machine = machine_name(device)
    print(f"\n{args.category}, {machine}\n\nsearch")
    print_table(searches)
    print("\nscore_samples")
    print_table(scores)
    print_json(machine=machine, searches=searches, scores=scores)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--category", default="mvtec/bottle")
    parser.add_argument("--n-train", type=int, help="images; all if not given")
    parser.add_argument("--image-size", type=int, help="resize images to this")
    parser.add_argument("--max-iter", type=int, help="training steps")
    parser.add_argument(
        "--bank-size", type=int, nargs="*", default=[100_000], help="of reduced banks"
    )
    parser.add_argument("--batch", type=int, default=32, help="images of a search")
    parser.add_argument("--many", type=int, default=64, help="images scored in a call")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of which the best counts"
    )
    parser.add_argument("--ways", nargs="+", help="all of the device if not given")
    parser.add_argument("--model", help="a file that keeps the fitted model")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def fit(args, device):
    """Return a fitted estimator, of a file if there is one."""
    if args.model and Path(args.model).exists():
        return joblib.load(args.model).set_params(device=device.type)
    train = load_mvtec_ad(args.data, args.category, image_size=args.image_size).images
    steps = {} if args.max_iter is None else {"max_iter": args.max_iter}
    est = PatchSVDD(random_state=0, device=device.type, neighbors="exact", **steps)
    est.fit(train[: args.n_train])
    if args.model:
        joblib.dump(est, args.model)
    return est


def reduce(est, size, device):
    """Return a copy of an estimator whose banks have `size` rows together."""
    _, _, indexes = parts_of(est)
    share = size / sum(len(x) for x in indexes)
    rng = np.random.RandomState(0)
    made = []
    for index in indexes:
        n_rows = max(round(share * len(index)), 1)
        bank = join_banks([index.bank()], n_rows, rng, device)
        made.append(make_index(bank, "exact", device, None, 0))
    model = copy.copy(est)
    fitted = est._fitted.change(indexes=made, known=[], owners=None)
    model._fitted = fitted
    return model


def time_searches(model, test, device, args):
    """Time all ways; return rows of a table, and searches by way, by scale."""
    dense, units, indexes = parts_of(model)
    _, batch = next(iter(check_images(test[: args.batch]).batches(args.batch)))
    scales = dense.add_positions(dense.encode(dense.move(batch)), units)
    ways = WAYS[device.type]
    chosen = {name: ways[name] for name in args.ways or ways}
    rows, made = [], {name: {} for name in chosen}
    for i, (index, features) in enumerate(zip(indexes, scales, strict=True)):
        x = features.flatten(1, 2)
        own = {}
        index.search_on(device)  # sorts the rows into clusters
        for name, make in chosen.items():
            with stopwatch(device) as seconds:
                made[name][i] = make(index, device)
            own[name] = {"make s": seconds[0]}
        one = time_in_turn({n: bind(made[n][i], x[:1]) for n in chosen}, device, args)
        n_rounds = min(args.rounds, 3)
        many = time_in_turn(
            {n: bind(made[n][i], x) for n in chosen}, device, args, n_rounds
        )
        plain = bind(made["plain"][i], x[:4])()
        for name, seconds in own.items():
            found = bind(made[name][i], x[:4])()
            error = ((found - plain).abs() / plain.clamp(min=1e-30)).max()
            rows.append(
                {
                    "way": name,
                    "rows": len(index),
                    "features": x.shape[2],
                    "patches": x.shape[1],
                    **seconds,
                    "ms alone": 1000 * one[name],
                    "ms in batch": 1000 * many[name] / len(x),
                    "error": float(error),
                }
            )
            print_table(rows[-1:])
    return rows, made


def bind(query, x):
    return functools.partial(query, x, [-1] * len(x))


def time_in_turn(calls, device, args, n_rounds=None):
    """Return the seconds of calls by name, the best of several in turn."""
    best = dict.fromkeys(calls, np.inf)
    for call in calls.values():
        call()
    for _ in range(n_rounds or args.rounds):
        for name, call in calls.items():
            with stopwatch(device) as seconds:
                call()
            best[name] = min(best[name], seconds[0])
    return best


def time_scores(model, made, test, device, args):
    """Time `score_samples` with all ways; return rows of a table."""
    images = np.resize(test, (args.many, *test.shape[1:]))
    _, _, indexes = parts_of(model)
    regressions = ["package"]
    if device.type == "cuda" and model._fitted.variations is not None:
        regressions = ["package", "plain"]
    rows = []
    for name, by_scale in made.items():
        for label in regressions:
            model._fitted = model._fitted.change()  # another bank and graph
            for i, index in enumerate(indexes):
                index._searches = {device: AsSearch(by_scale[i])}
            set_regressions(model, label, device)
            for _ in range(6 if device.type == "cuda" else 1):
                model.score_samples(images[:1])
            one, alone = np.inf, []
            for i in range(args.rounds):
                with stopwatch(device) as seconds:
                    alone.append(model.score_samples(images[i][None])[0])
                one = min(one, seconds[0])
            many = np.inf
            for _ in range(3 if device.type == "cuda" else 1):
                with stopwatch(device) as seconds:
                    scores = model.score_samples(images)
                many = min(many, seconds[0])
            rows.append(
                {
                    "way": name,
                    "variation": label,
                    "rows": sum(len(x) for x in indexes),
                    "ms alone": 1000 * one,
                    "ms in a call": 1000 * many / len(images),
                    "mean score": float(np.mean(scores)),
                    "differs": float(np.abs(scores[: len(alone)] / alone - 1).max()),
                }
            )
            print_table(rows[-1:])
            check_used(indexes, by_scale, device)
    return rows


def check_used(indexes, by_scale, device):
    """Raise if scoring used another search than the one that is measured."""
    for i, index in enumerate(indexes):
        if index.search_on(device).query is not by_scale[i]:
            raise RuntimeError("another search was used")


def set_regressions(model, label, device):
    """Find local normal variation as the package does, or by products in memory."""
    for variation in model._fitted.variations:
        vars(variation).pop("measure", None)
        if label == "plain":
            own = variation._make_model(device)
            variation.measure = functools.partial(regress_each, own)


def regress_each(model, features, left_out):
    """Find local variation image by image, so that no other image matters."""
    return torch.stack([regress(model, x) for x in features]) + model.typical


class AsSearch:
    """A function as a search of an index."""

    def __init__(self, query):
        self.query = query
        self.is_capturable = getattr(query, "is_capturable", False)


class Plain:
    """Compares every patch with every row."""

    is_capturable = False

    def __init__(self, index, device, is_tf32=False):
        rows, _, owners = index._take_needed()
        rows = torch.from_numpy(np.array(rows)).to(device)
        n_fillers = -len(rows) % TILE_ROWS
        n_columns = -rows.shape[1] % 8
        self._rows = F.pad(rows, (0, n_columns, 0, n_fillers))
        self._center = F.pad(rows.mean(dim=0), (0, n_columns))
        self._around = self._rows - self._center
        half_squares = self._around[: len(rows)].square().sum(dim=1) / 2
        self._largest = 2 * half_squares.max()
        self._half_squares = F.pad(half_squares, (0, n_fillers), value=torch.inf)
        self._owners = torch.from_numpy(np.array(owners)).to(device)
        self._error = product_error(self._rows.shape[1])
        self._is_tf32 = is_tf32
        if is_tf32:
            self._error += TF32_ERROR
        held = CPU_PRODUCTS if device.type == "cpu" else GPU_PRODUCTS
        self._n_queries = max(held // len(self._rows), 1)

    def __call__(self, features, left_out):
        """Return distances; all rows count here."""
        queries = features.flatten(0, 1)
        queries = F.pad(queries, (0, self._rows.shape[1] - queries.shape[1]))
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self._is_tf32 else "highest")
        try:
            found = [self._query(x) for x in queries.split(self._n_queries)]
        finally:
            torch.set_float32_matmul_precision(before)
        return torch.cat(found).view(features.shape[:2])

    def _multiply(self, queries):
        x = queries - self._center
        half_squares = x.square().sum(dim=1) / 2
        products = torch.addmm(self._half_squares, x, self._around.T, alpha=-1)
        products = products.view(len(x), -1, TILE_ROWS)
        return half_squares, products, products.amin(dim=2)

    def _query(self, queries):
        found = Nearest(queries, self._rows)
        half_squares, products, smallest = self._multiply(queries)
        query = torch.arange(len(queries), device=queries.device)
        tile = smallest.argmin(dim=1)
        row = products[query, tile].argmin(dim=1) + tile * TILE_ROWS
        found.offer(query, row)
        errors = self._error * (2 * half_squares + self._largest)
        limits = found.limits(query, half_squares, errors)
        query, tile = (smallest < limits[:, None]).nonzero().unbind(dim=1)
        is_below = products[query, tile] < limits[query, None]
        pair, row = is_below.nonzero().unbind(dim=1)
        found.offer(query[pair], row + tile[pair] * TILE_ROWS)
        return found.distances()


class Package:
    """The search of the package."""

    def __init__(self, index, device):
        index._searches = {}
        self._search = index.search_on(device)
        self.is_capturable = getattr(self._search, "is_capturable", False)

    def __call__(self, features, left_out):
        """Return distances."""
        return self._search.query(features, left_out)


WAYS = {
    "cpu": {"plain": Plain, "package": Package},
    "cuda": {
        "plain": Plain,
        "plain, TF32": functools.partial(Plain, is_tf32=True),
        "package": Package,
    },
}


if __name__ == "__main__":
    main()
