"""Whether images that show the same piece are noticed, and what that does.

For each category, first as it is: how many training images `fit` takes for pictures of
one piece with others ("linked", of "images"), how that changes the threshold at
false_alarm_rate=0.05 ("threshold", as a ratio), and the fraction of good test images
that raise an alarm, and of defective ones that are found, without and with it.

Then with planted twins: a third of the images join once more, relit, shifted by up to
20 pixels, or turned. "found" is the fraction of each sort that is linked with its
original, and "lends" the median fraction of patches whose nearest one is in it: what
lends nothing hides nothing.

With --calibrate CATEGORY ..., too: of the good test images of a category, 20 calibrate
and the others are inspected, over 20 draws: the fraction that raises an alarm before
and after, the largest of the draws, and the fraction of defects found.

Example: python benchmarks/bench_twins.py --data DATA --calibrate mvtec/leather
"""

import warnings

import numpy as np
from _common import find_categories, machine_name, make_parser, print_json, print_table
from _hooks import check_device, share_patches
from scipy import ndimage

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad

RATE = 0.05
SORTS = ("relit", "shifted", "turned")
N_CALIBRATING, N_DRAWS = 20, 20


def main():
    args = parse_arguments()
    found, planted, calibrated = [], [], []
    for category in find_categories(args.data, args.categories):
        train, test = (load(args, category, split) for split in ("train", "test"))
        if not args.only_calibrate:
            found.append({"category": category} | measure(train.images, test, args))
            print_table(found[-1:])
            planted += plant(category, train.images, args)
        if category in args.calibrate:
            row = calibrate(train.images, test, args)
            calibrated.append({"category": category} | row)
    machine = machine_name(check_device(args.device))
    tables = {
        f"as they are, {machine}": found,
        "with planted twins": planted,
        f"{N_CALIBRATING} good test images calibrate": calibrated,
    }
    for title, rows in tables.items():
        if rows:
            print(f"\n{title}\n")
            print_table(rows)
    print_json(machine=machine, found=found, planted=planted, calibrated=calibrated)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all if not given")
    parser.add_argument("--calibrate", nargs="+", default=[], metavar="CATEGORY")
    parser.add_argument("--only-calibrate", action="store_true")
    parser.add_argument("--n-train", type=int, help="all if not given")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def load(args, category, split):
    data = load_mvtec_ad(args.data, category, split=split, image_size=args.image_size)
    if split == "train":
        data.images = data.images[: args.n_train]
    return data


def fit(images, args, groups):
    est = PatchSVDD(
        encoder="procedural", false_alarm_rate=RATE, random_state=0, device=args.device
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return est.fit(images, groups=groups)


def count_linked(twins):
    """Return how many images are in a set of twins."""
    return 0 if twins is None else int((np.bincount(twins)[twins] > 1).sum())


def measure(images, test, args):
    alone, auto = (fit(images, args, groups) for groups in (None, "auto"))
    row = {
        "images": len(images),
        "linked": count_linked(auto.twins_),
        "threshold": auto.offset_ / alone.offset_,
    }
    for name, label in (("alarms", 1), ("found", -1)):
        own = test.images[test.labels == label]
        for way, est in (("without", alone), ("with", auto)):
            row[f"{name} {way}"] = float(np.mean(est.predict(own) == -1))
    return row


def plant(category, images, args):
    """Return a row for each sort of twins that join some images."""
    rng = np.random.RandomState(1)
    chosen = rng.permutation(len(images))[: len(images) // 3]
    sorts = rng.choice(SORTS, len(chosen))
    pairs = zip(chosen, sorts, strict=True)
    copies = [change(images[i], rng, sort) for i, sort in pairs]
    est = fit(np.concatenate([images, copies]), args, "auto")
    twins = np.arange(len(images) + len(copies)) if est.twins_ is None else est.twins_
    copied = len(images) + np.arange(len(copies))
    lent = share_patches(est, np.array(copies), chosen)
    rows = []
    for sort in SORTS:
        own = sorts == sort
        is_found = twins[chosen[own]] == twins[copied[own]]
        figures = {"found": float(np.mean(is_found)), "lends": np.median(lent[own])}
        rows.append({"category": category, "sort": sort, "n": int(own.sum())} | figures)
    return rows


def change(image, rng, sort):
    """Return another picture of the same piece, with a little noise."""
    x = image.astype(np.float32)
    height, width = x.shape[:2]
    if sort == "shifted":
        shift = (*rng.randint(-20, 21, 2), 0)[: x.ndim]
        x = ndimage.shift(x, shift, order=0, mode="reflect")
    elif sort == "turned":
        angle = rng.choice([90, 180, 270, rng.uniform(-15, 15)])
        x = ndimage.rotate(
            x, angle, axes=(1, 0), reshape=False, order=1, mode="reflect"
        )
    else:
        rows, cols = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)
        light = 1 + rng.uniform(-0.15, 0.15) * rows + rng.uniform(-0.15, 0.15) * cols
        light *= rng.uniform(0.85, 1.15)
        x = x * light.reshape(height, width, *[1] * (x.ndim - 2))
    return np.clip(x + rng.normal(scale=2, size=x.shape), 0, 255).astype(image.dtype)


def calibrate(images, test, args):
    """Set the threshold by good test images, and inspect the others."""
    est = fit(images, args, "auto")
    good, bad = (est.score_samples(test.images[test.labels == x]) for x in (1, -1))
    pictures = test.images[test.labels == 1]
    rng, alarms, found = np.random.RandomState(0), [], []
    before = float(np.mean(good < est.offset_))
    for _ in range(N_DRAWS):
        order = rng.permutation(len(good))
        est.calibrate(pictures[order[:N_CALIBRATING]])
        alarms.append(np.mean(good[order[N_CALIBRATING:]] < est.offset_))
        found.append(np.mean(bad < est.offset_))
    return {
        "alarms before": before,
        "after": float(np.mean(alarms)),
        "largest": float(np.max(alarms)),
        "found": float(np.mean(found)),
    }


if __name__ == "__main__":
    main()
