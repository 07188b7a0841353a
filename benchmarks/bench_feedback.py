"""How much it helps to be told of defects, on categories in the MVTec AD layout.

Of each kind of defects, some images become known defects, with their masks: 0, 1, 3 and
10 of them, or as many as half of the kind. For each number: the area under the ROC
curve of images (det) and of pixels (seg) on the other half of that kind, "same", which
is never known, and on all other kinds, "others", of which none is; and the fraction of
good images that raise an alarm at false_alarm_rate=0.05. Then the mean over the kinds
of each category, and over the categories, beside the largest loss of a category on
others. In the last table "missed" is 1 - det on the same kind, as a fraction of what it
is with none known.

With --fit they are known from the start, to `fit` instead of `partial_fit`, so that an
encoder that is trained learns by them.

With --promise N, too: N times, of all good images four of five are learnt, and of the
last fifth the fraction that raises an alarm at false_alarm_rate=0.05, before and with
five known defects.

--rows FILE keeps every row as soon as it is measured, and what is kept there already is
not measured again: a call that was cut off goes on where it ended.

Example: python benchmarks/bench_feedback.py --data DATA --n-train 30
Example: python benchmarks/bench_feedback.py --data DATA --seeds 0 1 --rows rows.jsonl
"""

import copy
import json
import os
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from _common import (
    add_encoder,
    find_categories,
    machine_name,
    make_parser,
    print_json,
    print_table,
)
from _hooks import check_device

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

ALPHA = 0.05
N_KNOWN = 5
FIGURES = ("det same", "seg same", "det others", "seg others", "alarms")
# What names a row.
KEYS = ("category", "seed", "kind", "known")
# Results that wait for their figures, at most: their maps are held as long.
N_WAITING = 12


def main():
    args = parse_arguments()
    table, promises = Table(args.rows), []
    for category in find_categories(args.data, args.categories):
        for seed in args.seeds:
            train, test = load(args, category, seed)
            states = list_states(category, seed, test, args)
            is_done = all(map(table.has, states))
            if args.promise:
                promises.append(measure_promise(train, test, category, seed, args))
            if is_done:
                continue
            est = make_estimator(args, seed).fit(train)
            fit = make_fit(args, seed, train) if args.fit else None
            measure_kinds(est, states, test, table, fit)
    machine = machine_name(check_device(args.device))
    rows = table.rows
    by_category, means = (x(rows, args.known) for x in (average_kinds, summarise))
    tables = {
        f"of each kind, {machine}": rows,
        "of each category": by_category,
        "means": means,
        f"good images that raise an alarm, at {ALPHA}": promises,
    }
    for title, some in tables.items():
        if some:
            print(f"\n{title}\n")
            print_table(some)
    print_json(
        machine=machine,
        rows=rows,
        categories=by_category,
        means=means,
        promises=promises,
    )


class Table:
    """Rows that are printed, and kept in a file, as soon as they are measured."""

    def __init__(self, path):
        self.rows, self._path = [], None if path is None else Path(path)
        if self._path is not None and self._path.exists():
            self.rows = [json.loads(x) for x in self._path.read_text().splitlines()]

    def has(self, state):
        """Whether the row of a state has been measured."""
        return any(all(row[x] == state[x] for x in KEYS) for row in self.rows)

    def add(self, row):
        """Print and keep a row."""
        self.rows.append(row)
        print_table([row])
        print(end="", flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all if not given")
    parser.add_argument("--known", nargs="+", type=int, default=[0, 1, 3, 10])
    parser.add_argument("--kinds", type=int, help="of each category, all if not given")
    parser.add_argument("--n-train", type=int, help="all if not given")
    parser.add_argument("--n-test", type=int, help="of each kind and of good images")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--fit", action="store_true", help="tell fit of the defects")
    parser.add_argument("--promise", type=int, default=0, metavar="N")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rows", metavar="FILE", help="keep rows here, and go on")
    parser.add_argument("--device", default="auto")
    add_encoder(parser)
    parser.set_defaults(encoder=["procedural"])
    return parser.parse_args()


def load(args, category, seed):
    """Load the images to train on, and those to test, in random order."""
    rng = np.random.RandomState(seed)
    size = {"image_size": args.image_size}
    train = load_mvtec_ad(args.data, category, **size).images
    train = train[rng.permutation(len(train))[: args.n_train]]
    test = load_mvtec_ad(args.data, category, split="test", **size)
    order = rng.permutation(len(test.images))
    names = test.defects[order]
    order = np.concatenate(
        [order[names == name][: args.n_test] for name in np.unique(names)]
    )
    for name in ("images", "masks", "defects", "labels"):
        test[name] = test[name][order]
    return train, test


def make_estimator(args, seed):
    return PatchSVDD(
        encoder=args.encoder,
        false_alarm_rate=ALPHA,
        random_state=seed,
        device=args.device,
    )


def make_fit(args, seed, train):
    """Return what fits an estimator to normal images and to known defects."""

    def fit(images, names, masks):
        X = np.concatenate([train, images])
        nothing = [None] * len(train)
        y = ["good"] * len(train) + names
        return make_estimator(args, seed).fit(X, y, masks=[*nothing, *masks])

    return fit


def list_states(category, seed, test, args):
    """List which images of which kinds are known, one after the other."""
    states = []
    for kind in sorted(set(test.defects) - {"good"})[: args.kinds]:
        n_most = min(max(args.known), np.sum(test.defects == kind) // 2)
        for n in sorted({int(min(n, n_most)) for n in args.known}):
            state = {"category": category, "seed": seed, "kind": kind, "known": n}
            states.append(state | {"unseen from": int(n_most)})
    return states


def measure_kinds(est, states, test, table, fit=None):
    """Add a row for each of some states of an estimator that is told of defects.

    By `fit`, see `make_fit`, if it is given. The figures of one state are computed
    beside the inspection by the next.
    """
    before, waiting = est.inspect(test.images), deque()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for state in states:
            if table.has(state):
                continue
            own = np.flatnonzero(test.defects == state["kind"])
            known, found = own[: state["known"]], before
            if len(known):
                names = [state["kind"]] * len(known)
                told = test.images[known], names, test.masks[known]
                taught = tell(est, *told) if fit is None else fit(*told)
                found = taught.inspect(test.images)
            same = own[state["unseen from"] :]
            call = pool.submit(rate, found, test, state["kind"], same)
            waiting.append((state, call))
            while waiting and (waiting[0][1].done() or len(waiting) > N_WAITING):
                _add_first(waiting, table)
        while waiting:
            _add_first(waiting, table)


def tell(est, images, names, masks):
    """Return a copy of an estimator that is told of defects."""
    taught = copy.copy(est)  # partial_fit sets attributes, and no more
    return taught.partial_fit(images, names, masks=masks)


def _add_first(waiting, table):
    state, call = waiting.popleft()
    table.add({x: state[x] for x in KEYS} | call.result())


def rate(found, test, kind, same):
    """Return the figures of an estimator that knows images of a kind."""
    good = np.flatnonzero(test.defects == "good")
    others = np.flatnonzero((test.defects != kind) & (test.defects != "good"))
    row = dict.fromkeys(FIGURES, float("nan"))
    for name, abnormal in (("same", same), ("others", others)):
        if len(abnormal) == 0:
            continue
        chosen = np.concatenate([good, abnormal])
        maps = [found.maps[i] for i in chosen]
        row[f"det {name}"] = detection_auroc(test.labels[chosen], found.scores[chosen])
        row[f"seg {name}"] = segmentation_auroc(test.masks[chosen], maps)
    row["alarms"] = float(np.mean(found.labels[good] == -1))
    return row


def average_kinds(rows, numbers):
    """Return the means over the kinds of each category, for each number of images."""
    table = []
    for category in sorted({row["category"] for row in rows}):
        for n in sorted(numbers):
            figures = _average(rows, category, n).tolist()
            row = {"category": category, "known": n}
            table.append(row | dict(zip(FIGURES, figures, strict=True)))
    return table


def summarise(rows, numbers):
    """Return means over kinds, then categories, for each number of known images.

    A kind that has fewer images counts with as many as there are.
    """
    categories = sorted({row["category"] for row in rows})
    before = np.array([_average(rows, x, 0) for x in categories])
    means = []
    for n in sorted(numbers):
        figures = np.array([_average(rows, category, n) for category in categories])
        row = {"known": n}
        row |= dict(zip(FIGURES, _mean(figures).tolist(), strict=True))
        missed = 1 - np.array([_mean(before)[0], _mean(figures)[0]])
        loss = (before - figures)[:, FIGURES.index("det others")]
        largest = loss[~np.isnan(loss)].max(initial=0.0)
        row["missed"] = float(missed[1] / missed[0]) if missed[0] > 0 else 1.0
        means.append(row | {"largest loss": float(largest)})
    return means


def _average(rows, category, n):
    """Return the mean figures of a category over its kinds."""
    own = [row for row in rows if row["category"] == category]
    figures = []
    for kind in sorted({(row["kind"], row["seed"]) for row in own}):
        some = [row for row in own if (row["kind"], row["seed"]) == kind]
        most = max(row["known"] for row in some if row["known"] <= n)
        figures += [[row[x] for x in FIGURES] for row in some if row["known"] == most]
    return _mean(figures)


def _mean(figures):
    """Return means of columns; where there are no other kinds, of nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice")
        return np.nanmean(figures, axis=0)


def measure_promise(train, test, category, seed, args):
    """Return how many good images raise an alarm, before and after what is told."""
    rng = np.random.RandomState(seed)
    pool = np.concatenate([train, test.images[test.labels == 1]])
    found = {"before": [], "defects": []}
    for _ in range(args.promise):
        shuffled = pool[rng.permutation(len(pool))]
        learnt, rest = np.split(shuffled, [len(pool) * 4 // 5])
        est = make_estimator(args, rng.randint(2**31)).fit(learnt)
        known = rng.permutation(np.flatnonzero(test.labels == -1))[:N_KNOWN]
        told = tell(est, test.images[known], [-1] * len(known), test.masks[known])
        for name, some in zip(found, (est, told), strict=True):
            found[name].append(np.mean(some.predict(rest) == -1))
    means = {name: float(np.mean(values)) for name, values in found.items()}
    return {"category": category, "seed": seed} | means


if __name__ == "__main__":
    main()
