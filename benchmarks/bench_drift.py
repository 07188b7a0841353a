"""New normal images without retraining: what partial_fit changes.

Fits to a category's training images, then lets every second image of test/good join the
bank. On the other half, before and after: false alarms at several shares, and the image
AUROC against all abnormal test images.

Example: python benchmarks/bench_drift.py --data DATA --category mvtec/screw
"""

import numpy as np
from _common import machine_name, make_parser, print_json, print_table, stopwatch
from _hooks import check_device

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc

ALPHAS = (0.01, 0.05, 0.1)


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--category", required=True, help="such as mvtec/screw")
    parser.add_argument("--max-iter", type=int, help="training steps")
    parser.add_argument("--bank-size", type=int, help="patches of each scale")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image-size", type=int, help="resize images to this")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device = check_device(args.device)
    size = {"image_size": args.image_size}
    train = load_mvtec_ad(args.data, args.category, **size).images
    test = load_mvtec_ad(args.data, args.category, split="test", **size)
    good = test.images[test.labels == 1]
    more, others = good[::2], good[1::2]
    params = {"random_state": args.seed, "device": args.device}
    params["bank_size"] = args.bank_size
    if args.max_iter is not None:
        params["max_iter"] = args.max_iter
    est = PatchSVDD(**params)
    with stopwatch(device) as fit_s:
        est.fit(train)
    rows = [rate("fit", est, others, test, fit_s)]
    with stopwatch(device) as added_s:
        est.partial_fit(more)
    rows.append(rate("partial_fit", est, others, test, added_s))
    print(f"\n{args.category}, {machine_name(device)}\n")
    print_table(rows)
    print_json(machine=machine_name(device), category=args.category, rows=rows)


def rate(name, est, others, test, seconds):
    """Rate an estimator by normal images that it has not seen, and abnormal ones."""
    p_values = est.p_values(others)
    images = np.concatenate([others, test.images[test.labels == -1]])
    labels = np.repeat([1, -1], [len(others), len(images) - len(others)])
    row = {"after": name, "images learnt": len(est.training_scores_)}
    row |= {f"alarms {a:g}": float(np.mean(p_values <= a)) for a in ALPHAS}
    row["lowest p-value"] = float(p_values.min())
    row["det"] = detection_auroc(labels, est.score_samples(images))
    return row | {"s": seconds[0]}


if __name__ == "__main__":
    main()
