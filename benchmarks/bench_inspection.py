"""Inspection: how long an image takes, and how exact its score is, by way of search.

In one run, for one category: patches cut out one by one with exact search over all
rows (the plain way) and dense encoding with the same search, both on a few images, then
pynndescent alone, the estimator's verified pynndescent, its exact search, and a reduced
bank. For each: the seconds to build the index, milliseconds for one image at a time,
also for one of noise, and images a second with 100 in a call, the best of three calls,
the error of the image scores against exact ones, mean and worst, the image AUROC, the
size of the model's file, the seconds in which a new process loads it and scores a first
image, and the peak memory of the process so far. Last, what encoding an image, and
comparing its patches with all rows, would take at the speed of a large product on this
device, measured in the same run.

With --files also from JPEG files: images a second of reading them alone, of inspecting
arrays, and of both at once.

The encoder is trained once, or left random with --max-iter 0. With --n-train 50 100 200
all of it is repeated with as many training images.

With --formats only the exact search, on the CPU even if trained on a GPU: how long
encoding and searching take in each number format of this processor, for test images of
every kind.

Example: python benchmarks/bench_inspection.py --data DATA --category mvtec/bottle
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import joblib
import numpy as np
import torch
from _common import (
    add_encoder,
    machine_name,
    make_parser,
    print_json,
    print_table,
    stopwatch,
)
from _floor import measure_inspection_floor
from _formats import is_one_format, measure_formats
from _hooks import (
    check_device,
    check_images,
    damp_light,
    encoder_of,
    parts_of,
    rebuild_bank,
    score_distances,
)
from PIL import Image

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc

PLAIN_CHUNK = 2**15
QUALITY = 90  # of JPEG files
N_TIMED, N_BATCHED = 20, 100
N_WARM = 5  # images alone until there is a CUDA graph
# Packages are imported before the clock starts, but for what only scoring needs.
FIRST_SCORE = """
import sys, time
import joblib, numpy, skpatchsvdd
start = time.perf_counter()
est = joblib.load(sys.argv[1])
est.score_samples(numpy.load(sys.argv[1].replace(".joblib", ".npy")))
print(time.perf_counter() - start)
"""


def main():
    args = parse_arguments()
    if is_one_format():
        print_json(**time_parts(args))
        return
    device = check_device(args.device)
    size = {"image_size": args.image_size}
    train = load_mvtec_ad(args.data, args.category, **size).images
    test = load_mvtec_ad(args.data, args.category, split="test", **size)
    est = PatchSVDD(
        encoder=args.encoder,
        random_state=0,
        device=device.type,
        bank_size=None if args.formats else 100,
        **({} if args.max_iter is None else {"max_iter": args.max_iter}),
    ).fit(train[: args.n_train[0]] if args.formats and args.n_train else train)
    if args.formats:
        show_formats(est.set_params(device="cpu"))
        return
    rows = []
    for n_train in args.n_train or [len(train)]:
        rows += measure(est, train[:n_train], test, device, args)
    print(f"\n{args.category}, {machine_name(device)}\n")
    print_table(rows)
    floor = show_floor(est, rows, device)
    machine = machine_name(device)
    print_json(machine=machine, category=args.category, rows=rows, floor=floor)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--category", required=True, help="such as mvtec/bottle")
    parser.add_argument("--n-train", nargs="+", type=int, help="all if not given")
    parser.add_argument("--bank-size", type=int, default=16_000, help="the reduced one")
    parser.add_argument("--max-iter", type=int, help="training steps")
    add_encoder(parser)
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=list(WAYS),
        help="pynndescent compiles for a minute",
    )
    parser.add_argument("--n-plain", type=int, default=2, help="images the slow ways")
    parser.add_argument("--files", type=int, default=0, help="so many, to inspect")
    parser.add_argument("--image-size", type=int, help="resize images to this")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--formats", action="store_true", help="formats of a CPU")
    parser.add_argument("--model", help=argparse.SUPPRESS)  # of one format
    return parser.parse_args()


def show_floor(est, rows, device):
    """Print what the operations of an image take at least, and return it."""
    n_images = rows[-1]["training images"]
    floor = measure_inspection_floor(est, n_images, device)
    print("\nan image at the speed of a large product")
    print_table([floor])
    both = floor["encoding floor ms"] + floor["all rows floor ms"]
    for row in rows:
        if (row["way"], row["training images"]) != ("exact", n_images):
            continue
        times = row["ms an image"] / both
        print(f"an exact inspection, alone, takes {times:.2g} times as long as both")
    return floor


def show_formats(est):
    """Time a fitted estimator in every format of the processor."""
    machine = machine_name("cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.joblib")
        joblib.dump(est, path)
        rows = measure_formats("--model", str(path))
    print(f"\n{machine}")
    print_json(machine=machine, formats=rows)


def time_parts(args):
    """Time encoding and scoring with a saved model; return one format's figures."""
    est = joblib.load(args.model)
    test = load_mvtec_ad(
        args.data, args.category, split="test", image_size=args.image_size
    )
    images = test.images[:: -(-len(test.images) // N_TIMED)]
    est.score_samples(images[:1])  # whatever is set up on first use
    with stopwatch() as encode_s:
        for image in images:
            est.embed(image[None], est.patch_sizes_[0])
    with stopwatch() as score_s:
        for image in images:
            est.score_samples(image[None])
    return {
        "rows": sum(est.bank_size_.values()),
        "encoding ms": 1000 * encode_s[0] / len(images),
        "rest ms": 1000 * (score_s[0] - encode_s[0]) / len(images),
        "ms an image": 1000 * score_s[0] / len(images),
    }


def measure(est, train, test, device, args):
    """Inspect with every way and return one row for each."""
    images = check_images(train)
    rows, scores = [], {}
    for name in args.ways:
        way = WAYS[name]
        size = args.bank_size if way.get("reduced") else None
        with stopwatch(device) as build_s:
            model = rebuild_bank(est, images, size, way["method"], device)
        shown = test.images[: None if "reduced" in way else args.n_plain]
        times, scores[name] = time_way(model, way, shown, device)
        if args.files:
            times |= time_files(model, way, test.images, args.files, device)
        rows.append(
            {
                "way": name,
                "training images": len(train),
                "rows": sum(model.bank_size_.values()),
                "build s": build_s[0],
                **times,
                "det": detection_auroc(test.labels, scores[name])
                if len(scores[name]) == len(test.labels)
                else None,
                **save_and_load(model, shown[:1], way["inspect"] is score),
                "peak MB": peak_memory() / 1e6,
            }
        )
        print_table(rows[-1:])
    return [row | compare(scores, row["way"]) for row in rows]


def time_way(model, way, images, device):
    """Return the times of one way, one by one and in batches, and the scores."""
    inspect = way["inspect"]
    for _ in range(N_WARM if inspect is score else 1):
        inspect(model, images[:1])  # whatever is set up on first use
    with stopwatch(device) as single_s:
        scores = np.concatenate([inspect(model, x[None]) for x in images])
    noise = np.random.default_rng(0).integers(0, 256, images[:1].shape, np.uint8)
    with stopwatch(device) as noise_s:
        inspect(model, noise)
    times = {
        "ms an image": 1000 * single_s[0] / len(images),
        "ms noise": 1000 * noise_s[0],
        "images a s": time_batches(lambda x: inspect(model, x), images, device)
        if "reduced" in way
        else None,
    }
    return times, scores


def time_batches(inspect, images, device):
    """Return images a second, many at once, in the best of three calls."""
    many = np.resize(images, (N_BATCHED, *images.shape[1:]))
    seconds = []
    for _ in range(3):
        with stopwatch(device) as call_s:
            inspect(many)
        seconds.append(call_s[0])
    return N_BATCHED / min(seconds)


def time_files(model, way, images, n_files, device):
    """Write images as files; return how many a second are read, inspected, and both."""
    if way["inspect"] is not score:
        return dict.fromkeys(("files read a s", "arrays a s", "files a s"))
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, f"{i}.jpg")) for i in range(n_files)]
        for i, path in enumerate(paths):
            Image.fromarray(images[i % len(images)]).save(path, quality=QUALITY)
        arrays = np.stack([np.asarray(Image.open(path)) for path in paths])
        calls = {
            "files read a s": lambda: read_files(paths),
            "arrays a s": lambda: score(model, arrays),
            "files a s": lambda: score(model, paths),
        }
        rates = {}
        for name, call in calls.items():
            with stopwatch(device) as seconds:
                call()
            rates[name] = n_files / seconds[0]
    return rates


def read_files(paths):
    """Read files as scoring them does, and do nothing else."""
    for _ in check_images(paths).batches(N_BATCHED):
        pass


def compare(scores, name):
    """Return how wrong the scores of a way are, compared with exact ones."""
    own = scores[name]
    error = np.array([np.nan])
    if "exact" in scores:
        error = np.abs(own / scores["exact"][: len(own)] - 1)
    return {"mean error": float(error.mean()), "worst error": float(error.max())}


def score(model, images):
    """Score images as a user does."""
    return model.score_samples(images)


def score_plain(model, images):
    """Encode patch by patch, and compare with every row."""
    return search_plain(model, images, encode_patchwise)


def score_all_rows(model, images):
    """Encode densely, and compare with every row."""
    return search_plain(model, images, lambda dense, x: dense.encode(x))


def score_unverified(model, images):
    """Take pynndescent's word for it."""
    dense, units, indexes = parts_of(model)
    scores = []
    for _, batch in check_images(images).batches(dense.batch_size):
        scales = dense.add_positions(dense.encode(batch), units)
        distances = []
        for i, x in enumerate(scales):
            index = indexes[i]._load()
            found = [
                index.query(image.flatten(0, 1).cpu().numpy(), k=15, epsilon=0.0)[1]
                for image in x
            ]
            found = torch.from_numpy(np.stack(found).min(axis=2))
            distances.append(found.reshape(x.shape[:3]))
        scores.append(score_distances(model, scales, distances))
    return np.concatenate(scores)


def search_plain(model, images, encode):
    dense, units, indexes = parts_of(model)
    banks = [index.bank().rows for index in indexes]
    x = check_images(images).pixels
    scales = dense.add_positions(encode(dense, x / np.float32(255)), units)
    distances = []
    for features, bank in zip(scales, banks, strict=True):
        bank = torch.from_numpy(bank).to(dense.device)
        center = bank.mean(dim=0)  # far from the origin cdist would lose digits
        queries, bank = features.flatten(0, 2) - center, bank - center
        smallest = torch.stack(
            [torch.cdist(queries, part).amin(dim=1) for part in bank.split(PLAIN_CHUNK)]
        ).amin(dim=0)
        distances.append(smallest.reshape(features.shape[:3]))
    return score_distances(model, scales, distances)


def encode_patchwise(dense, images):
    """Cut out every patch and encode them, (n, rows, cols, D) by scale."""
    x = torch.tensor(images, device=dense.device) - dense._center
    x = damp_light(x.permute(0, 3, 1, 2), dense.light)
    scales = []
    with torch.inference_mode():
        for size, stride in zip(dense.patch_sizes, dense.strides, strict=True):
            patches = x.unfold(2, size, stride).unfold(3, size, stride)
            n, c, rows, cols, _, _ = patches.shape
            patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, c, size, size)
            features = [encoder_of(dense)(part) for part in patches.split(256)]
            scales.append(torch.cat(features).reshape(n, rows, cols, -1))
    return scales


def save_and_load(model, images, is_loaded):
    """Save a model; score an image in a new process, and say how long that took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.joblib")
        joblib.dump(model, path)
        np.save(path.with_suffix(".npy"), images)
        seconds = None
        if is_loaded:
            command = [sys.executable, "-c", FIRST_SCORE, path]
            seconds = float(
                subprocess.run(command, capture_output=True, check=True).stdout
            )
        return {"file MB": path.stat().st_size / 1e6, "load, first score s": seconds}


def peak_memory():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


WAYS = {
    "plain": {"method": "exact", "inspect": score_plain},
    "dense, all rows": {"method": "exact", "inspect": score_all_rows},
    "pynndescent alone": {
        "method": "pynndescent",
        "inspect": score_unverified,
        "reduced": False,
    },
    "pynndescent verified": {
        "method": "pynndescent",
        "inspect": score,
        "reduced": False,
    },
    "exact": {"method": "exact", "inspect": score, "reduced": False},
    "reduced": {"method": "exact", "inspect": score, "reduced": True},
}


if __name__ == "__main__":
    main()
