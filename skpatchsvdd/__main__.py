"""The command line: ``python -m skpatchsvdd demo``."""

import argparse
import sys
import time

import numpy as np

from skpatchsvdd import PatchSVDD, __version__
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

_KINDS = ("gear", "fabric")
_N_SHOWN = 6


def main(argv=None):
    """Run the command line; return its exit status."""
    args = _parse(argv)
    try:
        return args.run(args)
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m skpatchsvdd", description="Patch SVDD for scikit-learn."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")
    demo = commands.add_parser(
        "demo", help="learn from made-up normal images and find made-up defects"
    )
    demo.add_argument("--output", default="demo.png", help="picture to write")
    demo.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    demo.add_argument("--random-state", type=int, default=0)
    demo.add_argument(
        "--max-iter",
        type=int,
        default=0,
        help="training steps; 0, the default, inspects with random weights",
    )
    demo.set_defaults(run=run_demo)
    return parser.parse_args(argv)


def run_demo(args):
    """Fit and test on a part and on a material, print figures, draw a picture."""
    import_pyplot()  # before the work, not after it
    start = time.perf_counter()
    print("kind    image AUROC  pixel AUROC   fit s  ms an image  false alarms  found")
    results = [demonstrate(kind, args) for kind in _KINDS]
    draw(results, args.output)
    seconds = time.perf_counter() - start
    print(f"wrote {args.output}; {seconds:.0f} s in all")
    return 0


def demonstrate(kind, args):
    """Fit to normal images of a kind and print how well its defects are found.

    Return the test data and their maps in units of the alarm level.
    """
    seed = args.random_state
    train = make_textures(40, image_size=192, kind=kind, random_state=seed)
    test = make_textures(
        50, image_size=192, anomaly_fraction=0.6, kind=kind, random_state=seed + 1
    )
    est = PatchSVDD(
        max_iter=args.max_iter,
        contamination=0.05,
        device=args.device,
        random_state=seed,
    )
    start = time.perf_counter()
    est.fit(train.images)
    fitted = time.perf_counter()
    maps = est.anomaly_map(test.images)
    ended = time.perf_counter()
    scores = -maps.max(axis=(1, 2))
    alarms, good = scores < est.offset_, test.labels == 1
    print(
        f"{kind:7}"
        f"{detection_auroc(test.labels, scores):12.3f}"
        f"{segmentation_auroc(test.masks, maps):13.3f}"
        f"{fitted - start:8.1f}"
        f"{1000 * (ended - fitted) / len(maps):13.0f}"
        f"{alarms[good].sum():8d} of {good.sum()}"
        f"{alarms[~good].sum():4d} of {(~good).sum()}",
        flush=True,
    )
    return test, maps / -est.offset_


def draw(results, output):
    """Draw one normal image and one of each defect, for every kind side by side."""
    from skpatchsvdd.plotting import AnomalyMapDisplay

    plt = import_pyplot()
    figure = plt.figure(figsize=(6.8 * len(results), 2.15 * _N_SHOWN), dpi=72)
    panels = figure.subfigures(1, len(results))
    for panel, (test, maps) in zip(panels, results, strict=True):
        _, shown = np.unique(test.defects, return_index=True)
        shown = sorted(shown)[:_N_SHOWN]  # the normal images come first
        axes = panel.subplots(_N_SHOWN, 3)
        for row in axes[len(shown) :].flat:
            row.set_axis_off()
        verdict = np.where(maps.max(axis=(1, 2)) > 1, "alarm", "no alarm")
        AnomalyMapDisplay.from_predictions(
            test.images[shown],
            maps[shown],
            masks=test.masks[shown],
            titles=[f"{test.defects[i]}: {verdict[i]}" for i in shown],
            axes=axes[: len(shown)],
            vmax=2,  # the alarm level, 1, is the middle of the colours
        )
    figure.savefig(output, bbox_inches="tight")
    plt.close(figure)


def import_pyplot():
    """Return matplotlib's pyplot, drawing to files."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "the demo draws with matplotlib: pip install skpatchsvdd[plot]"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


if __name__ == "__main__":
    sys.exit(main())
