"""Detection and segmentation on categories in the MVTec AD layout.

For each category and seed: the area under the ROC curve of images (det) and of pixels
(seg) and the per-region overlap (pro), for the estimator as it is by default, for
random weights (max_iter=0) and, on request, for raw patches.

Example: python benchmarks/bench_quality.py --data DATA --categories mvtec/bottle
"""

import numpy as np
from _common import (
    find_categories,
    machine_name,
    make_parser,
    print_json,
    print_table,
    stopwatch,
)

from skpatchsvdd import PatchSVDD
from skpatchsvdd._device import check_device
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc, pro_score, segmentation_auroc

SETTINGS = {
    "default": {},
    "random": {"max_iter": 0},
    "raw": {"encoder": "raw"},
}


def main():
    args = parse_arguments()
    device = check_device(args.device)
    rows = []
    for category in find_categories(args.data, args.categories):
        train = load_mvtec_ad(args.data, category)
        test = load_mvtec_ad(args.data, category, split="test")
        for name in args.settings:
            for seed in args.seeds:
                est = PatchSVDD(
                    random_state=seed,
                    device=args.device,
                    neighbors=args.neighbors,
                    **{"max_iter": args.max_iter, **SETTINGS[name]},
                )
                row = {"category": category, "setting": name, "seed": seed}
                rows.append(row | measure(est, train.images, test, device))
                print_table(rows[-1:])
    print(f"\n{machine_name(device)}\n")
    print_table(rows)
    print()
    means = mean_rows(rows, args.settings)
    print_table(means)
    print_json(machine=machine_name(device), rows=rows, means=means)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all below --data if not given")
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=["default", "random"]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--max-iter", type=int, default=PatchSVDD().max_iter)
    parser.add_argument("--neighbors", default="auto")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def measure(est, images, test, device):
    """Fit to images and return figures on the test images."""
    with stopwatch(device) as fit_s:
        est.fit(images)
    with stopwatch(device) as score_s:
        maps = est.anomaly_map(test.images)
    scores = -maps.max(axis=(1, 2))
    good = test.labels == 1
    return {
        "det": detection_auroc(test.labels, scores),
        "seg": segmentation_auroc(test.masks, maps),
        "pro": pro_score(test.masks, maps),
        "false alarms": float(np.mean(scores[good] < est.offset_)),
        "found": float(np.mean(scores[~good] < est.offset_)),
        "fit s": fit_s[0],
        "ms an image": 1000 * score_s[0] / len(maps),
    }


def mean_rows(rows, settings):
    """Average every figure over categories and seeds, for each setting."""
    figures = [key for key in rows[0] if key not in ("category", "setting", "seed")]
    return [
        {"setting": name}
        | {
            key: float(np.mean([row[key] for row in rows if row["setting"] == name]))
            for key in figures
        }
        for name in settings
    ]


if __name__ == "__main__":
    main()
