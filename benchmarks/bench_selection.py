"""Choosing lam without anomalies, and whether the threshold keeps its promise.

For each category and seed: PatchSVDD is fitted with each fixed lam and with lam="auto",
which chooses among the same values by synthetic defects. The table gives the image
AUROC of each, that of the best fixed lam in hindsight, how much of it "auto" reaches,
what it chose and by which scores of its trials, and the time of its fit relative to a
plain one.

A fifth of the training images is left out of every fit. Their p-values show whether the
threshold keeps its promise: the share of p-values up to alpha should be alpha, and the
largest distance of their distribution from the uniform one small. The same shares are
given for test/good, images that may have been taken in another way. "bound" is the
distance that uniform p-values exceed by chance once in twenty times (Smirnov's test).

The last line has means; in it "categories up to 0.12" counts those of which at most 12%
of test/good raise an alarm at 0.05, and "uniform" the fits within the bound. "tied" is
1 where all scores are the same, as those of a collapsed model are.

Example: python benchmarks/bench_selection.py --data DATA --seeds 0
"""

import sys
from pathlib import Path

import numpy as np
from _common import (
    find_categories,
    machine_name,
    make_parser,
    print_json,
    print_table,
    stopwatch,
)
from _hooks import check_device, list_trial_lams

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc

ALPHAS = (0.01, 0.05, 0.1)
LEFT_OUT = 5  # every fifth image
PLAIN = 0.3
MIN_TRAIN = 20


def main():
    args = parse_arguments()
    device = check_device(args.device)
    categories = find_categories(args.data, args.categories)
    choices, alarms = [], []
    size = {"image_size": args.image_size}
    for category in categories:
        train = load_mvtec_ad(args.data, category, **size).images[: args.n_train]
        test = load_mvtec_ad(args.data, category, split="test", **size)
        check_images(category, train, test.labels)
        for seed in args.seeds:
            rows = measure(train, test, seed, device, args)
            names = {"category": category, "seed": seed}
            choices.append(names | rows[0])
            alarms.append(names | rows[1])
            print_table(choices[-1:])
            print_table(alarms[-1:])
    print(f"\n{machine_name(device)}\n")
    print_table(choices)
    print()
    print_table(alarms)
    means = summarize(choices, alarms)
    print()
    print_table([means])
    print_json(
        machine=machine_name(device), choices=choices, alarms=alarms, means=means
    )


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all if not given")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--n-train", type=int, help="use the first training images")
    parser.add_argument("--max-iter", type=int, help="training steps")
    parser.add_argument("--image-size", type=int, help="resize images to this")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if not Path(args.data).is_dir():
        parser.error(f"--data: there is no folder {args.data}")
    for name in ("n_train", "max_iter", "seeds"):
        if np.min(getattr(args, name) or 0) < 0:
            parser.error(f"--{name.replace('_', '-')} must not be negative")
    try:
        check_device(args.device)
    except ValueError as error:
        parser.error(f"--device: {error}")
    return args


def check_images(category, train, labels):
    """End the run if images are too few, before they have cost a fit."""
    if len(train) < MIN_TRAIN:
        sys.exit(f"{category}: {len(train)} training images, {MIN_TRAIN} are needed")
    if len(np.unique(labels)) < 2:
        sys.exit(f"{category}: test needs a folder 'good' and one of abnormal images")


def measure(train, test, seed, device, args):
    """Fit with every lam and return a row about the choice and one about alarms."""
    is_left_out = np.arange(len(train)) % LEFT_OUT == LEFT_OUT - 1
    params = {"random_state": seed, "device": args.device}
    if args.max_iter is not None:
        params["max_iter"] = args.max_iter
    dets, seconds, scores = {}, {}, {}
    for lam in (*list_trial_lams("dense"), "auto"):
        est = PatchSVDD(encoder="hierarchical", lam=lam, **params)
        with stopwatch(device) as fit_s:
            est.fit(train[~is_left_out])
        seconds[lam] = fit_s[0]
        scores[lam] = est.score_samples(test.images)
        dets[lam] = detection_auroc(test.labels, scores[lam])
    choice = describe_choice(est, dets) | {
        "tied": int(np.ptp(scores["auto"]) == 0),
        "times a fit": seconds["auto"] / seconds[PLAIN],
    }
    good = test.images[test.labels == 1]
    return choice, count_alarms(est, train[is_left_out], good, len(train))


def describe_choice(est, dets):
    """Return what was chosen, beside the best in hindsight and the trials."""
    fixed = {lam: dets[lam] for lam in list_trial_lams("dense")}
    best = max(fixed.values())
    choice = {f"lam={lam:g}": det for lam, det in fixed.items()}
    choice |= {
        "best": best,
        "auto": dets["auto"],
        "share of best": dets["auto"] / best,
        "chosen": est.lam_,
    }
    trials = est.lam_results_ or {"lam": [], "score": []}  # with --max-iter 0
    for lam, score in zip(trials["lam"], trials["score"], strict=True):
        choice[f"trial {lam:g}"] = float(score)
    return choice


def count_alarms(est, left_out, good, n_train):
    """Return how often images that were not fitted to raise alarms."""
    held_out, good = est.p_values(left_out), est.p_values(good)
    alarm = {f"left out {alpha:g}": share(held_out, alpha) for alpha in ALPHAS}
    alarm["from uniform"] = distance_from_uniform(held_out)
    alarm["bound"] = uniform_bound(len(held_out), n_train - len(held_out))
    return alarm | {f"test/good {alpha:g}": share(good, alpha) for alpha in ALPHAS}


def share(p_values, alpha):
    """Share of p-values up to alpha."""
    return float(np.mean(p_values <= alpha))


def distance_from_uniform(p_values):
    """Largest difference between shares of p-values and what they should be."""
    ordered = np.sort(p_values)
    n = len(ordered)
    above = np.arange(1, n + 1) / n - ordered
    below = ordered - np.arange(n) / n
    return float(max(above.max(), below.max()))


def uniform_bound(n_values, n_scores):
    """Distance that n p-values, from so many scores, exceed by chance 1 time in 20."""
    return 1.36 * (1 / n_values + 1 / n_scores) ** 0.5


def summarize(choices, alarms):
    """Average over categories and seeds; count the alarms that are near the promise."""
    names = ("category", "seed", "chosen")
    numbers = [key for key in choices[0] if key not in names]
    means = {key: float(np.mean([row[key] for row in choices])) for key in numbers}
    within = {}
    for row in alarms:
        within.setdefault(row["category"], []).append(row["test/good 0.05"])
    means["left out 0.05"] = float(np.mean([row["left out 0.05"] for row in alarms]))
    n_within = sum(bool(np.mean(x) <= 0.12) for x in within.values())
    means["categories up to 0.12"] = n_within
    n_uniform = sum(row["from uniform"] <= row["bound"] for row in alarms)
    means["uniform"] = f"{n_uniform} of {len(alarms)}"
    return means


if __name__ == "__main__":
    main()
