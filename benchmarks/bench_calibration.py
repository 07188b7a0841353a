"""Whether the threshold keeps its promise, for new images and for new groups of them.

Three tables, of which --tables chooses some:

"groups": categories whose images are tiles of strips, in files named STRIP_NUMBER.
Strips are left out of the fit in turn, and test/good shows still others. At
false_alarm_rate=0.05: the fraction of images of left-out strips, and of test/good, that
raise an alarm, with and without groups, after training and with random weights; the
fraction that is promised (with few groups more than 0.05, see the user guide); and the
fraction of defects found.

"held out": every fifth training image is left out of the fit. "alarms" is the fraction
of their p-values up to 0.05; "from uniform" the largest distance of their distribution
from the uniform one, beside the p-value of Smirnov's test that it is chance. "times
seen" is the median anomaly score of the left-out images in units of the median
leave-one-out score of the images in the fit, and "when in fit" the same for the same
images in a fit to all: the quotient of the two, "cost", is what the encoder's having
seen the images hides.

"drift": the p-value of check_drift for the left-out images as they are, with defects of
test/ in a fifth of their places, and changed on purpose. "*" marks what it calls drift.
The first two should have none, the others should.

Example: python benchmarks/bench_calibration.py --data DATA --seeds 0
"""

import warnings
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
from scipy import ndimage
from scipy.stats import ks_2samp

from skpatchsvdd import PatchSVDD, Training
from skpatchsvdd.datasets import load_mvtec_ad

ALPHA = 0.05
LEFT_OUT = 5  # every fifth image
DEFECTS = 0.2
QUICK = 12  # images, about, of a trial run
TABLES = ("groups", "held out", "drift")


def main():
    args = parse_arguments()
    categories = find_categories(args.data, args.categories)
    rows = {table: [] for table in args.tables}
    for seed in args.seeds:
        for i, category in enumerate(categories):
            data = load(args, category)
            if "groups" in rows and category in args.grouped:
                rows["groups"] += measure_groups(data, seed, args)
            if rows.keys() & {"held out", "drift"}:
                other = load(args, categories[i - 1])[0].images
                measure_held_out(category, data, other, seed, args, rows)
    for table, lines in rows.items():
        if lines:
            print(f"\n{table}, {machine_name(check_device(args.device))}\n")
            print_table([{k: shown(v) for k, v in line.items()} for line in lines])
    print_json(machine=machine_name(check_device(args.device)), **rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all if not given")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument(
        "--grouped",
        nargs="+",
        default=["aitex/fabric00"],
        help="categories whose files are named GROUP_NUMBER",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--folds", type=int, default=4, help="of strips left out")
    parser.add_argument("--max-iter", type=int, help="training steps")
    add_encoder(parser)
    parser.add_argument("--batch-size", type=int, help="crops a step")
    parser.add_argument("--strides", nargs=2, type=int, help="wide ones are quick")
    parser.add_argument("--bank-size", type=int, help="patches of each scale")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="a trial run of seconds")
    args = parser.parse_args()
    if not Path(args.data).is_dir():
        parser.error(f"--data: there is no folder {args.data}")
    if args.folds < 2:
        parser.error("--folds must be at least 2")
    args.image_size = None
    if args.quick:
        args.max_iter, args.batch_size, args.strides = 1, 1, (16,)
        args.image_size, args.folds = 64, 2
    return args


def load(args, category):
    """Load the images to train on and those to test; with --quick few and small."""
    parts = []
    for split in ("train", "test"):
        data = load_mvtec_ad(
            args.data, category, split=split, image_size=args.image_size
        )
        if args.quick:
            step = max(len(data.images) // QUICK, 1)
            for name in ("images", "labels", "filenames"):
                data[name] = data[name][::step]
        parts.append(data)
    return parts


def make_estimator(args, seed, **params):
    params |= {"random_state": seed, "device": args.device, "false_alarm_rate": ALPHA}
    params["bank_size"] = args.bank_size
    params["encoder"] = args.encoder
    params["strides"] = None if args.encoder == ["procedural"] else args.strides
    params["patch_size"] = 32 if args.quick else 64
    if args.max_iter is not None:
        params.setdefault("max_iter", args.max_iter)
    if args.batch_size is not None:
        params["training"] = Training(batch_size=args.batch_size)
    return PatchSVDD(**params)


def fit(est, images, **kwargs):
    """Fit without the warnings of what the tables show."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*needs at least .* to calibrate on")
        warnings.filterwarnings("ignore", message="some images look like several")
        return est.fit(images, **kwargs)


def measure_groups(data, seed, args):
    """Leave strips out in turn; a row for each training, with and without groups."""
    train, test = data
    names = [Path(name).stem.rsplit("_", 1)[0] for name in train.filenames]
    strips, owners = np.unique(names, return_inverse=True)
    fold = np.random.RandomState(seed).permutation(len(strips)) % args.folds
    good, bad = (test.images[test.labels == label] for label in (1, -1))
    rows = []
    for training, params in (("trained", {}), ("random weights", {"max_iter": 0})):
        for use in ("without", "with"):
            alarms, promised, elsewhere, found = [], [], [], []
            for k in range(args.folds):
                is_out = fold[owners] == k
                kept = {"groups": owners[~is_out] if use == "with" else None}
                est = make_estimator(args, seed, **params)
                fit(est, train.images[~is_out], **kept)
                alarms.extend(est.predict(train.images[is_out]) == -1)
                elsewhere.extend(est.predict(good) == -1)
                found.extend(est.predict(bad) == -1)
                promised.append(promise(est))
            row = {"seed": seed, "encoder": training, "groups": use}
            row |= {"calibrating": int(est.calibrates_.sum())}
            columns = (promised, alarms, elsewhere, found)
            keys = ("promised", "strips left out", "test/good", "found")
            rows.append(
                row | {k: np.mean(x) for k, x in zip(keys, columns, strict=True)}
            )
            print_table([{k: shown(v) for k, v in rows[-1].items()}])
    return [{k: plain(v) for k, v in row.items()} for row in rows]


def promise(est):
    """Return the fraction of normal images that may raise an alarm, at most."""
    used = est.training_scores_ if est.groups_ is None else est.groups_[est.calibrates_]
    return max(1 / (len(np.unique(used)) + 1), ALPHA)


def measure_held_out(category, data, other, seed, args, rows):
    """Fit without every fifth image; add a row to each of the tables asked for."""
    train, test = data
    is_out = np.arange(len(train.images)) % LEFT_OUT == LEFT_OUT - 1
    images = train.images[is_out]
    est = fit(make_estimator(args, seed), train.images[~is_out])
    names = {"category": category, "seed": seed}
    if "held out" in rows:
        scores = est.score_samples(images)
        whole = fit(make_estimator(args, seed), train.images)
        rows["held out"].append(
            names
            | rate(est, est.p_values(images))
            | compare(est.training_scores_, scores, whole.training_scores_, is_out)
        )
        print_table([{k: shown(v) for k, v in rows["held out"][-1].items()}])
    if "drift" in rows:
        defects = test.images[test.labels == -1]
        batches = make_batches(images, defects, other, np.random.RandomState(seed))
        row = {name: marked(est.check_drift(x)) for name, x in batches.items()}
        rows["drift"].append(names | row)
        print_table(rows["drift"][-1:])


def rate(est, p_values):
    """Compare p-values with uniform ones."""
    uniform = np.arange(1, len(est.training_scores_) + 2) / (
        len(est.training_scores_) + 1
    )
    found = ks_2samp(p_values, uniform)
    return {
        "left out": len(p_values),
        "alarms": float(np.mean(p_values <= ALPHA)),
        "from uniform": float(found.statistic),
        "by chance": float(found.pvalue),
    }


def compare(seen, unseen, whole, is_out):
    """Compare the median score of images that the encoder has and has not seen."""
    ratio = float(np.median(unseen) / np.median(seen))
    in_fit = float(np.median(whole[is_out]) / np.median(whole[~is_out]))
    return {"times seen": ratio, "when in fit": in_fit, "cost": ratio / in_fit}


def make_batches(images, defects, other, rng):
    """Change images on purpose; the first two have not drifted."""
    mixed = images.copy()
    n_defects = min(int(DEFECTS * len(images)), len(defects))
    mixed[:n_defects] = defects[rng.permutation(len(defects))[:n_defects]]
    sigma = (0, 1, 1, 0)[: images.ndim]
    noise = rng.normal(scale=8, size=images.shape)
    batches = {
        "as they are": images,
        "with defects": mixed,
        "darker by 10": images - 10.0,
        "darker by 40": images - 40.0,
        "brighter by 40": images + 40.0,
        "half the contrast": images / 2 + images.mean() / 2,
        "blurred": ndimage.gaussian_filter(images.astype(float), sigma),
        "noisy": images + noise,
        "turned": images.swapaxes(1, 2),
        "another category": like(other, images),
    }
    return {k: np.clip(x, 0, 255).astype(np.uint8) for k, x in batches.items()}


def like(other, images):
    """Bring as many other images to the shape of these."""
    other = other[: len(images)]
    grey = other.mean(axis=3) if other.ndim == 4 else other
    if images.ndim == 3:
        return grey
    return other if other.ndim == 4 else np.stack([grey] * 3, axis=3)


def marked(result):
    return f"{result.p_value:.1e}{'*' if result.drifted else ''}"


def shown(value):
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def plain(value):
    return float(value) if isinstance(value, np.floating) else value


if __name__ == "__main__":
    main()
