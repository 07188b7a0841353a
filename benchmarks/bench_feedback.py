"""How much it helps to be told of defects, on categories in the MVTec AD layout.

Of each kind of defects, some images become known defects, with their masks: 0, 1, 3 and
10 of them, or as many as half of the kind. For each number: the area under the ROC
curve of images (det) and of pixels (seg) on the other half of that kind, "same", which
is never known, and on all other kinds, "others", of which none is; and the fraction of
good images that raise an alarm at contamination=0.05. Then the mean over the kinds of
each category, and over the categories, beside the largest loss of a category on others.

With --corrections, too: a mark is drawn on good images, a little different each time;
the first of them that raise an alarm are corrected. The fraction of further images with
such a mark that raise one, and of defects that are found, before and after.

Example: python benchmarks/bench_feedback.py --data DATA --n-train 30
"""

import copy
import warnings

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
N_CORRECTED = 5
FIGURES = ("det same", "seg same", "det others", "seg others", "alarms")


def main():
    args = parse_arguments()
    rows, corrections = [], []
    for category in find_categories(args.data, args.categories):
        for seed in args.seeds:
            train, test = load(args, category, seed)
            est = make_estimator(args, seed).fit(train)
            rows += measure_kinds(est, category, seed, test, args)
            if args.corrections:
                row = {"category": category, "seed": seed}
                corrections.append(row | measure_corrections(est, test, seed))
    machine = machine_name(check_device(args.device))
    print(f"\nof each kind, {machine}\n")
    print_table(rows)
    means = summarise(rows)
    print("\nmeans\n")
    print_table(means)
    if corrections:
        print(f"\n{N_CORRECTED} corrected false alarms\n")
        print_table(corrections)
    print_json(machine=machine, rows=rows, means=means, corrections=corrections)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all if not given")
    parser.add_argument("--known", nargs="+", type=int, default=[0, 1, 3, 10])
    parser.add_argument("--kinds", type=int, help="of each category, all if not given")
    parser.add_argument("--n-train", type=int, help="all if not given")
    parser.add_argument("--n-test", type=int, help="of each kind and of good images")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--corrections", action="store_true")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--device", default="auto")
    add_encoder(parser)
    parser.set_defaults(encoder=["formulas"])
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
        contamination=ALPHA,
        random_state=seed,
        device=args.device,
    )


def measure_kinds(est, category, seed, test, args):
    """Return a row for each kind of a category and number of known images."""
    rows, before = [], est.inspect(test.images)
    kinds = sorted(set(test.defects) - {"good"})[: args.kinds]
    for kind in kinds:
        own = np.flatnonzero(test.defects == kind)
        n_most = min(max(args.known), len(own) // 2)
        for n in sorted({min(n, n_most) for n in args.known}):
            known, found = own[:n], before
            if n > 0:
                names = [kind] * n
                taught = copy.deepcopy(est)
                taught.partial_fit(test.images[known], names, masks=test.masks[known])
                found = taught.inspect(test.images)
            row = {"category": category, "seed": seed, "kind": kind, "known": n}
            row |= rate(found, test, kind, own[n_most:])
            rows.append(row)
            print_table([row])
    return rows


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


def summarise(rows):
    """Return means over kinds, then categories, for each number of known images.

    A kind that has fewer images counts with as many as there are.
    """
    categories = sorted({row["category"] for row in rows})
    means = []
    for n in sorted({row["known"] for row in rows}):
        figures = np.array([_average(rows, category, n) for category in categories])
        loss = np.array([_average(rows, x, 0) for x in categories]) - figures
        row = {"known": n}
        row |= dict(zip(FIGURES, _mean(figures).tolist(), strict=True))
        largest = loss[:, FIGURES.index("det others")]
        largest = largest[~np.isnan(largest)].max(initial=0.0)
        means.append(row | {"largest loss": float(largest)})
    return means


def _average(rows, category, n):
    """Return the mean figures of a category over its kinds."""
    own = [row for row in rows if row["category"] == category]
    figures = []
    for kind in sorted({row["kind"] for row in own}):
        some = [row for row in own if row["kind"] == kind and row["known"] <= n]
        most = max(row["known"] for row in some)
        figures += [[row[x] for x in FIGURES] for row in some if row["known"] == most]
    return _mean(figures)


def _mean(figures):
    """Return means of columns; where there are no other kinds, of nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice")
        return np.nanmean(figures, axis=0)


def measure_corrections(est, test, seed):
    """Draw a mark on good images, correct some of the alarms, and inspect the rest."""
    rng = np.random.RandomState(seed)
    good = test.images[test.labels == 1]
    marked = np.stack([draw_mark(image, rng) for image in good])
    defects = test.images[test.labels == -1]
    alarms = np.flatnonzero(est.predict(marked) == -1)
    taught = copy.deepcopy(est)
    if len(alarms):
        taught.partial_fit(marked[alarms[:N_CORRECTED]], corrections=True)
    rest = np.setdiff1d(np.arange(len(marked)), alarms[:N_CORRECTED])
    row = {"corrected": len(alarms[:N_CORRECTED])}
    for name, some in (("before", est), ("after", taught)):
        if len(rest):
            row[f"marks {name}"] = float(np.mean(some.predict(marked[rest]) == -1))
        row[f"found {name}"] = float(np.mean(some.predict(defects) == -1))
    return row


def draw_mark(image, rng):
    """Return an image with a bright disc, about in its middle."""
    height, width = image.shape[:2]
    radius = min(height, width) * rng.uniform(0.05, 0.07)
    centre = np.array([height, width]) * rng.uniform(0.42, 0.58, 2)
    rows, cols = np.ogrid[:height, :width]
    inside = (rows - centre[0]) ** 2 + (cols - centre[1]) ** 2 < radius**2
    marked = image.copy()
    marked[inside] = np.clip(marked[inside] * 0.3 + 0.7 * 240, 0, 255)
    return marked


if __name__ == "__main__":
    main()
