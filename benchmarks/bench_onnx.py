"""Files of ONNX: what they say beside the estimator, how large and how fast they are.

For each category an estimator is fitted to all training images, exported with the full
bank and with a reduced one, and run by onnxruntime on all test images, one by one. For
each file: its size and the seconds of exporting it, how many verdicts are the
estimator's own, the largest difference of scores and of pixels of maps, relative to the
largest pixel, the image AUROC of both, and milliseconds for one image, of the file and
of the estimator's `inspect`, in turn and with as many threads: the best of three times,
the median over images; and for each of 16 images in one call, with whether that changes
any result. Estimator and files of a reduced bank differ by what the bank has lost, too.
All that is not timed has one thread, which others on the machine disturb least.

Example: python benchmarks/bench_onnx.py --data DATA --categories mvtec/bottle
"""

import copy
import itertools
import json
import sys
import tempfile
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

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import detection_auroc

N_BATCHED, N_TIMES = 16, 3


def main():
    args = parse_arguments()
    rows = []
    for category in find_categories(args.data, args.categories):
        rows.append(measure_category(args, category))
        print_table(rows[-1:])
        sys.stdout.flush()
    machine = f"{machine_name('cpu')}, onnxruntime {import_runtime().__version__}"
    print(f"\n{machine}")
    print_table(rows)
    print_json(machine=machine, encoder=args.encoder, rows=rows)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of categories")
    parser.add_argument("--categories", nargs="+", help="by default all")
    parser.add_argument("--encoder", nargs="+", default=["procedural"], help="names")
    parser.add_argument("--max-iter", type=int, default=0, help="steps of training")
    parser.add_argument("--image-size", type=int, help="what images are resized to")
    parser.add_argument("--n-train", type=int, help="training images, by default all")
    parser.add_argument("--timed", type=int, default=20, help="images that are timed")
    parser.add_argument("--threads", type=int, default=2, help="threads of both")
    parser.add_argument("--device", default="cpu", help="must be cpu")
    return parser.parse_args()


def import_runtime():
    try:
        import onnxruntime
    except ImportError:
        sys.exit("this script needs pip install onnx onnxscript onnxruntime")
    return onnxruntime


def measure_category(args, category):
    """Return the row of a category."""
    size = {"image_size": args.image_size}
    train = load_mvtec_ad(args.data, category, **size).images[: args.n_train]
    test = load_mvtec_ad(args.data, category, split="test", **size)
    est = PatchSVDD(
        encoder=args.encoder,
        max_iter=args.max_iter,
        random_state=0,
        device="cpu",
        n_jobs=1,
    ).fit(train)
    images = test.images if test.images.ndim == 4 else test.images[..., None]
    expected = est.inspect(images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.onnx"
        row = measure_file(args, est, path, test.labels, images, expected)
    return {"category": category} | row


def measure_file(args, est, path, labels, images, expected):
    with stopwatch() as seconds:
        facts = est.export_onnx(path)
    session = open_session(path, args.threads)
    scores, _, verdicts, maps, _ = run_all(session, images)
    largest = max(np.abs(x).max() for x in expected.maps)
    pairs = zip(maps, expected.maps, strict=True)
    own, others = time_in_turn(args, est, session, images)
    batch = images[:N_BATCHED]
    with stopwatch() as batched:
        together = session.run(None, {"images": batch})
    return {
        "rows": sum(facts["bank_size"].values()),
        "MB": path.stat().st_size / 1e6,
        "export s": seconds[0],
        "verdicts": f"{(verdicts == expected.labels).sum()} of {len(images)}",
        "score diff": float(np.abs(scores / expected.scores - 1).max()),
        "map diff": float(max(np.abs(x - y).max() for x, y in pairs) / largest),
        "ms": 1000 * float(np.median(own)),
        "ms est": 1000 * float(np.median(others)),
        "ratio": float(np.median(own) / np.median(others)),
        "ms batch": 1000 * batched[0] / len(batch),
        "same batch": bool((together[3] == maps[: len(batch)]).all()),
        "det": detection_auroc(labels, scores),
        "det est": detection_auroc(labels, expected.scores),
    }


def open_session(path, n_threads):
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = n_threads
    # Threads that wait at full speed would be in the way of the estimator's.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )


def run_all(session, images):
    """Return the results of all images, each inspected alone."""
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["image_shape"]) == list(images.shape[1:])
    found = [session.run(None, {"images": x[None]}) for x in images]
    return [np.concatenate(x) for x in zip(*found, strict=True)]


def time_in_turn(args, est, session, images):
    """Return the seconds of the file and of the estimator, image by image."""
    chosen = np.linspace(0, len(images) - 1, min(args.timed, len(images))).astype(int)
    times = np.zeros((2, len(chosen), N_TIMES))
    est = copy.copy(est).set_params(n_jobs=args.threads)
    for k, i in itertools.product(range(N_TIMES), range(len(chosen))):
        image = images[chosen[i], None]
        with stopwatch() as own:
            session.run(None, {"images": image})
        with stopwatch() as others:
            est.inspect(image)
        times[:, i, k] = *own, *others
    return times.min(axis=2)


if __name__ == "__main__":
    main()
