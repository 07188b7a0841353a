"""Training: the estimator's, and a plain patch-by-patch loop, in one run.

The plain loop is what the paper describes: patches cut out on the host by loader
processes, 64 pairs for each loss and scale, float32, Adam at 1e-4, one kernel after the
other. Both begin with the same kind of encoder and are evaluated the same way, at wide
strides and with the estimator's own weight of positions, outside of their clocks.

For each category and seed: step time and pairs a second of both; the seconds until each
first reaches --target image AUROC. The plain loop is given --factor times as long as
the estimator needed, and is evaluated eight times on its way, the estimator twenty
times; if it has not arrived by then, the ratio is at least --factor.

Libraries are loaded before the clocks start. Random weights that have arrived count as
0 seconds, and give no ratio: choose a higher --target.

Also how far a step is from the floor: its operations over the speed of a large product
in the format it trains in, bf16 or float32, and its bytes over the speed of a large
copy, both measured in this run.

With --formats, nothing of that: on a CPU, the time of a step and of the whole training
of the first category, and their operations, in each number format of this processor.

Example: python benchmarks/bench_training.py --data DATA --categories mvtec/bottle
"""

import os
import time
from dataclasses import replace

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
from _floor import count_step, measure_floor, training_dtype
from _formats import is_one_format, measure_formats
from _hooks import (
    PatchSVDDLoss,
    Watch,
    check_device,
    check_images,
    make_encoder,
    pairs_of_a_crop,
    resolve,
    score_with,
)
from _hooks import train as train_watched
from _plain_training import SIZES, PlainPairs, plain_step

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc

N_TIMED_IMAGES, N_TIMED_STEPS = 16, 5
LAM, RATE = 1e-3, 1e-4
N_LOOKS, N_PLAIN_LOOKS = 20, 8
# The encoder that is trained.
TRAINED = "hierarchical"
STRIDES = (8, 16)
MID_GREY = np.full((1, 1, 1), 0.5, dtype=np.float32)


def main():
    args = parse_arguments()
    if args.formats:
        show_formats(args)
        return
    device = check_device(args.device)
    warm_up(args.device)
    rows = []
    size = {"image_size": args.image_size}
    for category in find_categories(args.data, args.categories):
        train = check_images(load_mvtec_ad(args.data, category, **size).images)
        test = load_mvtec_ad(args.data, category, split="test", **size)
        for seed in args.seeds:
            row = {"category": category, "seed": seed}
            rows.append(row | compare(train, test, seed, device, args))
            print_table(rows[-1:])
    print(f"\n{machine_name(device)}\n")
    print_table(rows)
    step_ms = [row["ms a step"] for row in rows]
    floor = measure_floor(
        device, step_ms, *count_step(make_estimator(0, args), train, device)
    )
    print()
    print_table([floor])
    print_json(machine=machine_name(device), rows=rows, floor=floor)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all below --data if not given")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--target", type=float, default=0.98, help="image AUROC")
    parser.add_argument("--factor", type=float, default=20)
    parser.add_argument("--max-iter", type=int, help="steps of the estimator")
    parser.add_argument(
        "--n-pairs", type=int, default=64, help="pairs of a loss in the plain loop"
    )
    n_cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=max(n_cores - 2, 1))
    parser.add_argument("--image-size", type=int, help="resize images to this")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--formats", action="store_true", help="formats of a CPU")
    return parser.parse_args()


def show_formats(args):
    """Time a step in every format of the processor, or in the one it is set to."""
    if is_one_format():
        print_json(**time_steps(args))
        return
    machine = machine_name("cpu")
    rows = measure_formats()
    print(f"\n{machine}")
    print_json(machine=machine, formats=rows)


def time_steps(args):
    """Time some steps on the CPU; return the figures of one format."""
    device = torch.device("cpu")
    category = find_categories(args.data, args.categories)[0]
    train = load_mvtec_ad(args.data, category, image_size=args.image_size).images
    train = check_images(train[:N_TIMED_IMAGES])
    est = make_estimator(0, args)
    n_steps = resolve(est, device).max_iter
    watch = ClockWatch(None, 1)
    train_watched(est.set_params(max_iter=N_TIMED_STEPS), train, watch, device, 0)
    seconds = float(np.median(np.diff(watch.times)[1:]))  # the first sets things up
    operations, _ = count_step(make_estimator(0, args), train, device)
    return {
        "trains in": str(training_dtype(device)).removeprefix("torch."),
        "ms a step": 1000 * seconds,
        "GFLOP a step": operations / 1e9,
        "GFLOP/s": operations / seconds / 1e9,
        "steps": n_steps,
        "TFLOP in all": n_steps * operations / 1e12,
        "training s": n_steps * seconds,
    }


class ClockWatch(Watch):
    """Looks at the clock after every step, and at nothing else."""

    times = ()

    def look(self, encoder, step):
        """Keep the time."""
        self.times = (*self.times, time.perf_counter())
        self.steps, self.scores = [0], [1.0]
        return False


def warm_up(device):
    """Fit once to noise: a GPU's libraries are loaded on first use."""
    noise = np.random.default_rng(0).random((4, 72, 72, 3), dtype=np.float32)
    PatchSVDD(encoder=TRAINED, max_iter=5, device=device).fit(noise)


def make_estimator(seed, args):
    """Make the estimator as it is by default, but for what the arguments say."""
    given = {} if args.max_iter is None else {"max_iter": args.max_iter}
    return PatchSVDD(encoder=TRAINED, random_state=seed, device=args.device, **given)


def compare(train, test, seed, device, args):
    """Train both ways and return one row."""
    est = make_estimator(seed, args)
    ours, ours_s, n_steps, step_s = run_ours(est, train, test, device, args.target)
    limit = args.factor * (ours_s or step_s * n_steps)  # also if we never arrive
    plain, plain_s, plain_step_s = run_plain(train, test, seed, device, limit, args)
    n_crops = resolve(est, device).batch_size
    n_ours = n_crops * pairs_of_a_crop(n_crops) * 2 * len(SIZES)
    n_plain = args.n_pairs * 2 * len(SIZES)
    return {
        "ms a step": 1000 * step_s,
        "plain ms": 1000 * plain_step_s,
        "pairs a s": n_ours / step_s,
        "plain pairs a s": n_plain / plain_step_s,
        "best det": max(ours),
        "plain det": max(plain),
        "s to target": ours_s,
        "plain s": f">{limit:.1f}" if plain_s is None else plain_s,
        "times sooner": (plain_s or limit) / ours_s if ours_s else None,
    }


class TimedWatch(Watch):
    """Evaluates on test images outside of the clock, and keeps the first arrival."""

    def __init__(self, evaluate, every, target, device):
        super().__init__(evaluate, every)
        self.target, self.device = target, device
        self.arrival = None
        self.spent = 0.0
        self.start = time.perf_counter()

    def look(self, encoder, step):
        """Evaluate an encoder; the time it takes does not count."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        super().look(encoder, step)
        if self.arrival is None and self.scores[-1] >= self.target:
            self.arrival = now - self.start - self.spent if step > 0 else 0.0
        self.spent += time.perf_counter() - now
        return False


def run_ours(est, train, test, device, target):
    """Return scores, seconds to the target, steps and seconds a step."""
    max_iter = resolve(est, device).max_iter
    evaluate = make_evaluation(train, test, MID_GREY, resolve(est, device), device)
    watch = TimedWatch(evaluate, max(max_iter // N_LOOKS, 1), target, device)
    with stopwatch(device) as seconds:
        train_watched(est, train, watch, device, est.random_state)
    return watch.scores, watch.arrival, max_iter, (seconds[0] - watch.spent) / max_iter


def run_plain(train, test, seed, device, limit, args):
    """Return scores, seconds to the target and seconds a step."""
    generator = torch.Generator().manual_seed(seed)
    center = train.mean_image()
    encoder = make_encoder("hierarchical", center.shape[2], 64, SIZES[-1], generator)
    encoder = encoder.to(device).requires_grad_(True)
    options = replace(resolve(PatchSVDD(encoder=TRAINED), device), light=1.0)
    evaluate = make_evaluation(train, test, center, options, device)
    objective = PatchSVDDLoss(encoder, LAM, args.n_pairs)
    objective.reset_parameters(generator)
    objective = objective.to(device)
    parameters = [*encoder.parameters(), *objective.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    loader = torch.utils.data.DataLoader(
        PlainPairs(train.pixels, center, seed, args.n_pairs),
        batch_size=None,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    watch = None
    for step, batch in enumerate(loader):
        if watch is None:  # the loader's start does not count
            watch = TimedWatch(evaluate, 1, args.target, device)
        plain_step(encoder, objective, optimizer, batch, device)
        elapsed = time.perf_counter() - watch.start - watch.spent
        if elapsed > limit * (len(watch.scores) + 1) / N_PLAIN_LOOKS:
            watch.look(encoder, step + 1)
        if watch.arrival is not None or len(watch.scores) == N_PLAIN_LOOKS:
            break
    return watch.scores, watch.arrival, elapsed / (step + 1)


def make_evaluation(train, test, center, options, device):
    """Return a function that gives an encoder's image AUROC at wide strides."""
    images = check_images(test.images)

    def evaluate(encoder):
        parts = (train, images, center, options, STRIDES, device)
        return detection_auroc(test.labels, score_with(encoder, *parts))

    return evaluate


if __name__ == "__main__":
    main()
