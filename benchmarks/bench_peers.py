"""PatchSVDD beside PatchCore, PaDiM and EfficientAD of anomalib, on one CPU.

Each model runs in a process of its own, with as many threads as the others, on the same
images, read and resized before. In the table: the seconds of a fit; the median
milliseconds of an image that is alone in a call, and those of each of 32 in a call; the
memory of a process with all imported, images read and a network made (idle), and at its
peak; the size of the fitted model as a file; the areas under the ROC curve of images
(det) and of pixels (seg), and the per-region overlap (pro).

The others need weights that were learnt from ImageNet. Name them with --weights: for
patchcore and padim the file of the backbone as timm has it (wide_resnet50_2 and
resnet18), for efficientad that of a network fitted to the category. Without them,
weights are random: times and sizes are the same, and quality, which would mean nothing,
is "-".

EfficientAD trains for 70,000 steps; a few are measured, and multiplied.

    make peers ARGS="--data DATA --category mpdd/metal_plate"

Example: python benchmarks/bench_peers.py --data DATA --category mpdd/metal_plate
"""

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from _common import machine_name, make_parser, print_json, print_table, stopwatch
from _peers import MODELS, AnomalibModel, import_anomalib
from bench_memory import peak_memory, run_alone

from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc, pro_score, segmentation_auroc

# Images that are timed alone.
N_ALONE = 16
# Images in a call of many.
N_TOGETHER = 32


def main():
    args = parse_arguments()
    # Processes that are started read these.
    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "TQDM_DISABLE": "1"}
    torch.set_num_threads(args.threads)
    rows = []
    for name in args.models:
        rows.append(run_alone(measure, MODELS[name], args.weights.get(name), args))
        print_table(rows[-1:])
    machine = machine_name("cpu")
    print(f"\n{args.category}, {machine}\n")
    print_table(rows)
    print_json(machine=machine, category=args.category, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--category", required=True, help="such as mvtec/bottle")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=list(MODELS),
        help="all if not given",
    )
    parser.add_argument(
        "--weights", nargs="+", default=[], metavar="MODEL=FILE", help="of the others"
    )
    parser.add_argument("--n-train", type=int, help="first training images alone")
    parser.add_argument("--n-test", type=int, help="so many, evenly spaced")
    parser.add_argument(
        "--image-size", type=int, default=256, help="at least 256 for efficientad"
    )
    parser.add_argument("--steps", type=int, default=20, help="measured of EfficientAD")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    args.weights = dict(text.partition("=")[::2] for text in args.weights)
    for name, path in args.weights.items():
        if name not in MODELS or not Path(path).is_file():
            parser.error(f"--weights must be MODEL=FILE, of a file, not {name}={path}")
    others = [x for x in args.models if issubclass(MODELS[x], AnomalibModel)]
    if others and find_spec("anomalib") is None:
        parser.error(
            f"{', '.join(others)}: anomalib is not installed. `make peers` installs it "
            "into .venv-peers and runs this script there."
        )
    return args


def measure(kind, weights, args):
    """Fit a model, inspect test images, and return the row of the table."""
    torch.set_num_threads(args.threads)
    size = {"image_size": args.image_size}
    train = load_mvtec_ad(args.data, args.category, **size).images[: args.n_train]
    test = load_mvtec_ad(args.data, args.category, split="test", **size)
    chosen = np.arange(len(test.images))
    if args.n_test:
        chosen = np.unique(np.linspace(0, len(chosen) - 1, args.n_test).round())
    chosen = chosen.astype(int)
    images = test.images[chosen]
    if issubclass(kind, AnomalibModel):
        import_anomalib()
    model = kind(weights, args.steps)
    idle = peak_memory()
    with stopwatch() as fit_s:
        model.fit(train)
    model.inspect(images[:1])  # the first call of a process is slower
    alone_s = [
        time_call(model, images[i : i + 1]) for i in range(N_ALONE)[: len(images)]
    ]
    with stopwatch() as all_s:
        parts = range(0, len(images), N_TOGETHER)
        found = [model.inspect(images[i : i + N_TOGETHER]) for i in parts]
    peak = peak_memory()
    scores, maps = (np.concatenate(x) for x in zip(*found, strict=True))
    has_quality = weights or not issubclass(kind, AnomalibModel)
    labels, masks = test.labels[chosen], test.masks[chosen]
    return {
        "model": kind.name,
        "weights": name_weights(weights, kind),
        "trained on": len(train),
        "tested on": len(images),
        "fit s": fit_s[0] + model.remaining_s,
        "fit is": model.fitted,
        "ms alone": 1000 * float(np.median(alone_s)),
        "ms of many": 1000 * all_s[0] / len(images),
        "idle MB": idle / 1e6,
        "peak MB": peak / 1e6,
        "model MB": file_size(model) / 1e6,
        "det": detection_auroc(labels, -scores) if has_quality else "-",
        "seg": segmentation_auroc(masks, maps) if has_quality else "-",
        "pro": pro_score(masks, maps) if has_quality else "-",
    }


def name_weights(weights, kind):
    """Say in a word where a model's pretrained weights are from."""
    if weights:
        return Path(weights).name
    return "random" if issubclass(kind, AnomalibModel) else "its own"


def time_call(model, images):
    with stopwatch() as seconds:
        model.inspect(images)
    return seconds[0]


def file_size(model):
    """Return the bytes of a fitted model as a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fitted.model")
        model.save(path)
        return path.stat().st_size


if __name__ == "__main__":
    main()
