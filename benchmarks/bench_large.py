"""Small scratches on pictures of 12 megapixels: full resolution against default size.

Pictures are training images of a category, enlarged and mirrored at their borders until
they are large, with grain as a camera's. Some show one scratch, as long as --scratch
says in pixels and a third as wide. Pictures to learn from and to test are of different
images. Found and false alarms are at false_alarm_rate=0.05, which takes 19 training
pictures; memory is the peak of a process of its own, in which all was done.

Example: python benchmarks/bench_large.py --data DATA --category mvtec/leather
"""

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from _common import find_categories, machine_name, make_parser, print_json, print_table
from _hooks import check_device
from bench_memory import peak_memory, run_alone
from PIL import Image, ImageDraw

from skpatchsvdd import PatchSVDD
from skpatchsvdd.metrics import detection_auroc

RATE = 0.05
REDUCED = 576 * 768
GRAIN = 3.0  # deviation, in grey levels
# How finely a scratch is drawn before it is reduced, and how much darker it is.
FINE, DEPTH = 8, 0.35


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--category", required=True, help="such as mvtec/leather")
    parser.add_argument("--train", type=int, default=20, help="training pictures")
    parser.add_argument("--good", type=int, default=8, help="pictures without scratch")
    parser.add_argument("--bad", type=int, default=16, help="pictures with one")
    parser.add_argument(
        "--size", nargs=2, type=int, default=[3000, 4000], help="height and width"
    )
    parser.add_argument("--enlarge", type=int, default=2, help="times, of each image")
    parser.add_argument(
        "--scratch", nargs=2, type=int, default=[6, 20], help="shortest and longest"
    )
    parser.add_argument(
        "--settings",
        nargs="+",
        choices=["default", "full"],
        default=["default", "full"],
    )
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    find_categories(args.data, [args.category])
    device = str(check_device(args.device))
    with tempfile.TemporaryDirectory() as folder:
        run_alone(draw_all, args, folder)
        rows = [
            {"setting": x} | run_alone(measure, args, folder, x, device)
            for x in args.settings
        ]
    machine = machine_name(device)
    print(f"\n{args.category}, {args.train} training pictures, {machine}\n")
    print_table([{k: v for k, v in row.items() if k != "lengths"} for row in rows])
    print_json(machine=machine, category=args.category, rows=rows)


def draw_all(args, folder):
    """Write all pictures as files; the name of a scratched one ends with its length."""
    files = sorted(Path(args.data, args.category, "train/good").iterdir())
    np.random.RandomState(0).shuffle(files)
    half = len(files) // 2
    kinds = (
        ("train", args.train, files[:half]),
        ("good", args.good, files[half:]),
        ("bad", args.bad, files[half:]),
    )
    with ProcessPoolExecutor() as executor:
        for k, (kind, n, parts) in enumerate(kinds):
            Path(folder, kind).mkdir()
            lengths = [0] * n
            if kind == "bad":
                lengths = np.linspace(*args.scratch, n).round().astype(int)
            for i, length in enumerate(lengths):
                file = Path(folder, kind, f"{i:03}_{length}.jpg")
                executor.submit(write, file, parts, args, length, 1000 * k + i)


def write(file, parts, args, length, seed):
    """Draw a picture, with a scratch of some length if that is not 0, as a file."""
    rng = np.random.RandomState(seed)
    picture = draw_picture(parts, args.size, args.enlarge, rng)
    if length:
        picture = scratch(picture, length, rng)
    Image.fromarray(picture).save(file, quality=95)


def draw_picture(files, size, enlarge, rng):
    """Return an image, mirrored again and again at its borders, with grain."""
    image = Image.open(files[rng.randint(len(files))]).convert("RGB")
    shape = [enlarge * x for x in image.size]
    tile = np.asarray(image.resize(shape, Image.Resampling.BICUBIC))
    missing = [
        max(want - have, 0) for want, have in zip(size, tile.shape, strict=False)
    ]
    canvas = np.pad(tile, [*((0, x) for x in missing), (0, 0)], mode="symmetric")
    canvas = canvas[: size[0], : size[1]].astype(np.float32)
    canvas += GRAIN * rng.standard_normal(canvas.shape[:2])[:, :, None]
    return canvas.clip(0, 255).round().astype(np.uint8)


def scratch(picture, length, rng):
    """Return a picture with a dark line of some length, somewhere inside."""
    side = 2 * length
    top, left = (rng.randint(side, n - 2 * side) for n in picture.shape[:2])
    turn = rng.uniform(0, np.pi)
    reach = FINE * np.array([np.cos(turn), np.sin(turn)]) * length / 2
    middle = np.full(2, FINE * side / 2)
    mask = Image.new("L", (FINE * side, FINE * side))
    ends = [tuple(middle - reach), tuple(middle + reach)]
    ImageDraw.Draw(mask).line(ends, fill=255, width=max(FINE * length // 3, 1))
    mask = mask.resize((side, side), Image.Resampling.BOX)
    darker = 1 - DEPTH * np.asarray(mask, dtype=np.float32)[:, :, None] / 255
    part = picture[top : top + side, left : left + side]
    part[:] = (part * darker).round()
    return picture


def measure(args, folder, setting, device):
    """Fit and score at a setting; return figures."""
    image_size = "full"
    if setting == "default":
        ratio = (REDUCED / np.prod(args.size)) ** 0.5
        image_size = tuple(round(ratio * x) for x in args.size)
    kinds = ("train", "good", "bad")
    train, good, bad = (sorted(Path(folder, x).iterdir()) for x in kinds)
    est = PatchSVDD(
        image_size=image_size, false_alarm_rate=RATE, random_state=0, device=device
    )
    start = time.perf_counter()
    est.fit(train, groups=None)
    fit = time.perf_counter() - start
    start, cpu = time.perf_counter(), time.process_time()
    scores = est.score_samples([*good, *bad])
    n = len(scores)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    abnormal = scores < est.offset_
    labels = np.repeat([1, -1], [len(good), len(bad)])
    lengths = [int(Path(x).stem.split("_")[1]) for x in bad]
    return {
        "det": float(detection_auroc(labels, scores)),
        "found": float(abnormal[len(good) :].mean()),
        "false alarms": float(abnormal[: len(good)].mean()),
        "s fit": fit,
        "s an image": seconds / n,
        "CPU s an image": cpu / n,
        "peak MB": peak_memory() / 1e6,
        "lengths": [
            x for x, y in zip(lengths, abnormal[len(good) :], strict=True) if y
        ],
    }


if __name__ == "__main__":
    main()
