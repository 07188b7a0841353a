"""How well settings are ranked without labels, by defects on held-out images.

Each setting is fitted to a part of the training images of each category. The others,
with synthetic defects, judge it by several measures, and the test images say what it is
worth: the areas under the ROC curve of images (det) and of pixels (seg). For each
measure: the Spearman correlation with det over the settings, by category, in the mean,
and of the means over categories; and how far the det of the setting that it chooses
lies above that of the default, in the mean and at worst, and below the best.

Example: python benchmarks/bench_judge.py --data DATA --categories mvtec/bottle
Example: python benchmarks/bench_judge.py --data DATA --jobs 4 --save probes.npz
Example: python benchmarks/bench_judge.py --load probes.npz --measures scorer image
"""

import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

import numpy as np
import torch
from _common import (
    find_categories,
    machine_name,
    make_parser,
    print_json,
    print_table,
    stopwatch,
)
from _hooks import check_device, make_probes, rank_pixels, rate_ranks, rate_scores
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import average_precision_score

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

DEFAULT = "default"
# Sizes are parts of that of the images.
SETTINGS = {
    DEFAULT: {},
    "D=8": {"embedding_dim": 8},
    "D=16": {"embedding_dim": 16},
    "D=32": {"embedding_dim": 32},
    "lam=0": {"lam": 0.0},
    "lam=10": {"lam": 10.0},
    "untrained": {"max_iter": 0},
    "position=0": {"inspection__position_weight": 0.0},
    "position=20": {"inspection__position_weight": 20.0},
    "bank=0.1": {"bank_size": 0.1},
    "bank=0.3": {"bank_size": 0.3},
    "relative=0": {"inspection__relative_weight": 0.0},
    "relative=1": {"inspection__relative_weight": 1.0},
    "size/2": {"image_size": 1 / 2},
    "size*3/4": {"image_size": 3 / 4},
}
ROW = ("category", "setting", "seed", "det", "seg", "fit s", "judge s")
# What is known of a probe: its image, how large and how strong its defect is, the score
# (high is normal), the mean rank of the defect's pixels in the map among those of
# undamaged probes, and their mean precision in the map itself.
FIELDS = ("owner", "area", "strength", "score", "rank", "precision")


def main():
    args = parse_arguments()
    if args.load:
        rows, probes = load(args.load)
    else:
        rows, probes = [], []
        for found in look_at_all(args):
            print_table(found[0])
            rows, probes = rows + found[0], probes + found[1]
            if args.save:  # each time, in case that the others do not come to an end
                save(args.save, rows, probes)
    for row, found in zip(rows, probes, strict=True):
        view = Probes(found)
        row |= {name: MEASURES[name](view) for name in args.measures}
    by_setting = average(rows)
    machine = machine_name(check_device(args.device))
    print(f"\n{machine}\n")
    print_table(by_setting)
    summary = [summarize(by_setting, name) for name in args.measures]
    print()
    print_table(summary)
    print_json(machine=machine, rows=by_setting, measures=summary)


def parse_arguments():
    parser = make_parser(__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", help="folder of the data set")
    source.add_argument("--load", help="what --save has saved, in place of fits")
    parser.add_argument("--save", help="keep what measures are computed from")
    parser.add_argument("--categories", nargs="+", help="all below --data if not given")
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS)
    )
    parser.add_argument(
        "--measures", nargs="+", choices=MEASURES, default=list(MEASURES)
    )
    parser.add_argument("--n-train", type=int, help="first training images alone")
    parser.add_argument("--n-test", type=int, help="so many test images of each kind")
    parser.add_argument("--n-held-out", type=int, default=30, help="or a third")
    parser.add_argument("--n-copies", type=int, default=4, help="damaged, of each")
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--max-iter", type=int, help="steps of what is trained")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="categories at a time")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def save(path, rows, probes):
    """Keep rows as text, and probes, of which categories have different numbers."""
    texts = np.array([list(row.values()) for row in rows])
    lengths = [len(x) for x in probes]
    np.savez_compressed(
        path, rows=texts, lengths=lengths, probes=np.concatenate(probes)
    )


def load(path):
    """Return the rows and probes that `save` kept."""
    with np.load(path) as file:
        rows = [
            dict(zip(ROW, (*x[:3], *map(float, x[3:])), strict=True))
            for x in file["rows"].tolist()
        ]
        return rows, np.split(file["probes"], file["lengths"].cumsum()[:-1])


def look_at_all(args):
    """Yield rows, and what was found on the probes of each, of each category."""
    tasks = [
        (args, category, seed)
        for category in find_categories(args.data, args.categories)
        for seed in args.seeds
    ]
    with ExitStack() as stack:
        go = map
        if args.jobs > 1:
            context = get_context("spawn")
            pool = ProcessPoolExecutor(args.jobs, context, set_threads, (args.jobs,))
            go = stack.enter_context(pool).map
        yield from go(look_at, *zip(*tasks, strict=True))


def set_threads(n_jobs):
    """Leave the other processes their cores."""
    torch.set_num_threads(max(torch.get_num_threads() // n_jobs, 1))


def look_at(args, category, seed):
    """Fit each setting to a category; return a row and what is found on probes."""
    size, device = args.image_size, check_device(args.device)
    images = load_mvtec_ad(args.data, category, image_size=size).images[: args.n_train]
    test = load_mvtec_ad(args.data, category, split="test", image_size=size)
    chosen = choose_test(test.labels, args.n_test)
    order = np.random.RandomState(seed).permutation(len(images))
    n_held_out = min(args.n_held_out, len(images) // 3)
    held_out, train = images[order[:n_held_out]], images[order[n_held_out:]]
    probes = draw_probes(held_out, args.n_copies, seed)
    rows, found = [], []
    for name in args.settings:
        est = make_estimator(args, name, seed)
        with warnings.catch_warnings(), stopwatch(device) as fit_s:
            warnings.simplefilter("ignore")
            est.fit(train, groups=None)
        with stopwatch(device) as judge_s:
            found.append(inspect_probes(est, *probes))
        seen = est.inspect(test.images[chosen])
        det = detection_auroc(test.labels[chosen], seen.scores)
        seg = segmentation_auroc(test.masks[chosen], seen.maps)
        values = category, name, seed, det, seg, fit_s[0], judge_s[0]
        rows.append(dict(zip(ROW, values, strict=True)))
    return rows, found


def choose_test(labels, n):
    """Return indices of n test images of each kind, or of all."""
    if n is None:
        return np.arange(len(labels))
    kinds = [np.flatnonzero(labels == kind) for kind in (1, -1)]
    return np.concatenate([x[np.linspace(0, len(x) - 1, n, dtype=int)] for x in kinds])


def make_estimator(args, name, seed):
    parameters = {"image_size": 1, **SETTINGS[name]}
    if args.max_iter is not None:
        parameters = {"max_iter": args.max_iter} | parameters
    parameters["image_size"] = round(args.image_size * parameters["image_size"])
    est = PatchSVDD(random_state=seed, device=args.device)
    return est.set_params(**parameters)


def draw_probes(images, n_copies, seed):
    """Return copies as bytes, their masks and how strong each defect is."""
    images = images.reshape(*images.shape[:3], -1) / 255
    rng = np.random.RandomState(seed)
    copies, masks = make_probes(images, n_copies, rng)
    plain = np.tile(images, (len(copies) // len(images), 1, 1, 1))
    change = np.abs(copies - plain).max(axis=3)
    strength = (change * masks).sum(axis=(1, 2)) / masks.sum(axis=(1, 2)).clip(1)
    return (255 * copies).round().astype(np.uint8), masks, strength


def inspect_probes(est, copies, masks, strength):
    """Return what is found on probes, (n_copies, len(FIELDS))."""
    seen = est.inspect(copies)
    is_damaged = masks.any(axis=(1, 2))
    owner = np.arange(len(copies)) % (np.count_nonzero(~is_damaged) // 2)
    rank, precision = np.zeros((2, len(copies)))
    rank[is_damaged] = rank_pixels(seen.maps, masks)
    for i in np.flatnonzero(is_damaged):
        precision[i] = average_precision_score(masks[i].ravel(), seen.maps[i].ravel())
    area = masks.mean(axis=(1, 2))
    return np.stack([owner, area, strength, seen.scores, rank, precision], axis=1)


class Probes:
    """What was found on the probes of a setting, by name."""

    def __init__(self, found):
        for name, values in zip(FIELDS, found.T, strict=True):
            setattr(self, name, values)
        self.is_damaged = self.area > 0
        self.is_plain = np.arange(len(found)) <= self.owner.max()
        self.log = np.log(-self.score)  # high is abnormal

    def large(self):
        """Return which defects are larger than the median one."""
        return self.area > np.median(self.area[self.is_damaged])

    def auroc(self, chosen=True):
        """Tell defects, all if not given, from undamaged probes."""
        chosen = self.is_damaged & chosen
        labels = np.where(chosen, -1, 1)
        used = chosen | ~self.is_damaged
        return detection_auroc(labels[used], self.score[used])

    def gain(self, limit=np.inf):
        """Return how much a defect adds to its image's score, in deviations."""
        plain = self.log[self.is_plain]
        gain = (self.log - plain[self.owner.astype(int)]) / (plain.std() + 1e-9)
        return float(gain[self.is_damaged].clip(0, limit).mean())

    def found(self, chosen=True):
        """Return the rating of scores, of defects that are chosen."""
        used = ~self.is_damaged | chosen
        return float(rate_scores(self.score[used], self.is_damaged[used]))

    def odds(self, chosen=True):
        """Return the rating of maps, of defects that are chosen."""
        return float(rate_ranks(self.rank[self.is_damaged & chosen]))

    def pixels(self, name):
        """Return the mean of a figure of the pixels of defects."""
        return float(getattr(self, name)[self.is_damaged].mean())


# The first is what SyntheticDefectScorer returns, the mean of the next two.
MEASURES = {
    "scorer": lambda p: (p.found() + p.odds()) / 2,
    "found": lambda p: p.found(),
    "odds": lambda p: p.odds(),
    "large": lambda p: (p.found(p.large()) + p.odds(p.large())) / 2,
    "small": lambda p: (p.found(~p.large()) + p.odds(~p.large())) / 2,
    "gain": lambda p: p.gain(),
    "gain3": lambda p: p.gain(3),
    "gain3+odds": lambda p: p.gain(3) / 6 + p.odds() / 2,
    "image": lambda p: p.auroc(),
    "image large": lambda p: p.auroc(p.large()),
    "pixel": lambda p: p.pixels("rank"),
    "precision": lambda p: p.pixels("precision"),
    "found+precision": lambda p: (p.found() + p.pixels("precision")) / 2,
    "image+pixel": lambda p: (p.auroc() + p.pixels("rank")) / 2,
}


def average(rows):
    """Average over the seeds of each category and setting."""
    groups = {}
    for row in rows:
        groups.setdefault((row["category"], row["setting"]), []).append(row)
    figures = [name for name in rows[0] if name not in ROW[:3]]
    return [
        {"category": category, "setting": setting}
        | {name: float(np.mean([row[name] for row in group])) for name in figures}
        for (category, setting), group in groups.items()
    ]


def summarize(rows, measure):
    """Return how well a measure ranks settings and what its choice loses."""
    result, losses, missed = {"measure": measure}, [], []
    for category in dict.fromkeys(row["category"] for row in rows):
        group = [row for row in rows if row["category"] == category]
        det = np.array([row["det"] for row in group])
        judged = np.array([row[measure] for row in group])
        default = next((x["det"] for x in group if x["setting"] == DEFAULT), np.nan)
        is_same = min(np.ptp(rankdata(det)), np.ptp(rankdata(judged))) == 0
        result[category] = 0.0 if is_same else float(spearmanr(det, judged).statistic)
        losses.append(default - det[judged.argmax()])
        missed.append(det.max() - det[judged.argmax()])
    correlations = list(result.values())[1:]
    return result | {
        "mean": float(np.mean(correlations)),
        "of means": correlate_means(rows, measure),
        "chosen - default": -float(np.mean(losses)),
        "worst": -float(np.max(losses)),
        "best - chosen": float(np.mean(missed)),
    }


def correlate_means(rows, measure):
    """Return the correlation over the settings of the means over categories."""
    means = []
    for key in ("det", measure):
        groups = {}
        for row in rows:
            groups.setdefault(row["setting"], []).append(row[key])
        means.append([np.mean(x) for x in groups.values()])
    return float(spearmanr(*means).statistic)


if __name__ == "__main__":
    main()
