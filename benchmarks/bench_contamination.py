"""What defective images among the training images do, and what setting aside helps.

For each category, fraction and seed, so many of the training images are replaced by
defective ones of its test set, which leave that ("no overlap") or, with --overlap, stay
there. For each value of `contamination`: area under the ROC curve of images ("det") and
pixels ("seg"), the fraction of defective test images that is found, and of good ones
that raises an alarm, at false_alarm_rate=0.05, which fraction of the defective ("bad
aside") and of the good training images ("good aside") is set aside, and the seconds
that `fit` takes.

Example: python benchmarks/bench_contamination.py --data DATA --n-train 60
"""

import time
import warnings

import numpy as np
from _common import find_categories, machine_name, make_parser, print_json, print_table
from _hooks import check_device

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

RATE = 0.05


def main():
    args = parse_arguments()
    rows = []
    for category in find_categories(args.data, args.categories):
        parts = [load_mvtec_ad(args.data, category, split=x) for x in ("train", "test")]
        for fraction in args.fractions:
            for seed in args.seeds:
                mixed = mix(*parts, fraction, args, np.random.RandomState(seed))
                for setting in args.contamination:
                    row = {"category": category, "fraction": fraction, "seed": seed}
                    row["contamination"] = str(setting)
                    rows.append(row | measure(setting, seed, mixed, args))
                    print_table(rows[-1:])
    machine = machine_name(check_device(args.device))
    print(f"\nmeans over categories and seeds, {machine}\n")
    means = summarise(rows)
    print_table(means)
    print_json(machine=machine, means=means, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all if not given")
    parser.add_argument(
        "--fractions", type=float, nargs="+", default=[0, 0.05, 0.1, 0.2, 0.4]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--contamination",
        type=lambda x: x if x == "auto" else float(x),
        nargs="+",
        default=[0, "auto"],
        metavar="VALUE",
    )
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--n-train", type=int, help="all if not given")
    parser.add_argument("--n-test", type=int, help="of each sort, all if not given")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def mix(train, test, fraction, args, rng):
    """Return training images, which are defective, and test images with their masks."""
    n_train = min(args.n_train or len(train.images), len(train.images))
    good, bad = (np.flatnonzero(test.labels == x) for x in (1, -1))
    n_bad = min(round(fraction * n_train), len(bad) // 2)
    taken = rng.choice(bad, n_bad, replace=False)
    kept = rng.choice(len(train.images), n_train - n_bad, replace=False)
    images = np.concatenate([train.images[kept], test.images[taken]])
    is_bad = np.arange(n_train) >= n_train - n_bad
    order = rng.permutation(n_train)
    bad = bad if args.overlap else np.setdiff1d(bad, taken)
    chosen = np.concatenate([rng.permutation(x)[: args.n_test] for x in (good, bad)])
    shown = test.images[chosen], test.labels[chosen], test.masks[chosen]
    return images[order], is_bad[order], shown


def measure(setting, seed, mixed, args):
    images, is_bad, (shown, labels, masks) = mixed
    est = PatchSVDD(
        contamination=setting,
        false_alarm_rate=RATE,
        random_state=seed,
        device=args.device,
    )
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        est.fit(images)
    seconds = time.perf_counter() - start
    found = est.inspect(shown)
    is_alarm = found.labels == -1
    aside = np.zeros(len(images), dtype=bool)
    aside[est.suspects_.indices[est.suspects_.is_set_aside]] = True
    return {
        "det": detection_auroc(labels, found.scores),
        "seg": segmentation_auroc(masks, found.maps),
        "found": float(is_alarm[labels == -1].mean()),
        "alarms": float(is_alarm[labels == 1].mean()),
        "bad aside": float(aside[is_bad].mean()) if is_bad.any() else 0.0,
        "good aside": float(aside[~is_bad].mean()),
        "seconds": seconds,
    }


def summarise(rows):
    """Return the means of all figures by fraction and setting."""
    keys = sorted({(x["fraction"], x["contamination"]) for x in rows})
    means = []
    for fraction, setting in keys:
        own = [
            x
            for x in rows
            if (x["fraction"], x["contamination"]) == (fraction, setting)
        ]
        names = list(own[0])[4:]
        means.append(
            {"fraction": fraction, "contamination": setting}
            | {name: float(np.mean([x[name] for x in own])) for name in names}
        )
    return means


if __name__ == "__main__":
    main()
