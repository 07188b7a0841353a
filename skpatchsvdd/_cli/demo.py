"""The command ``demo``: what the package does, on synthetic images."""

import collections
import time

import numpy as np

from skpatchsvdd._cli.maps import in_thresholds
from skpatchsvdd._patch_svdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

# A part and a material, small enough for minutes on two cores.
_KINDS = ("gear", "fabric")
_IMAGE_SIZE, _N_TRAIN, _N_TEST = 192, 40, 50
_N_SHOWN = 6
# Enough to see what training adds, in minutes on two cores, whatever the last bits; a
# fit with the default parameters sees three and a half times as many crops.
_BATCH_SIZE = 4
_STRIDES = (8, 16)  # twice as wide as usual at the smaller scale: quicker to search


def run(args):
    """Fit to a part and to a material, print what training adds, draw a picture."""
    import_pyplot()  # before the work, not after it
    start = time.perf_counter()
    panels, rows = [], []
    for kind in _KINDS:
        seed = args.random_state
        made = {"image_size": _IMAGE_SIZE, "kind": kind}
        train = make_textures(_N_TRAIN, random_state=seed, **made)
        test = make_textures(
            _N_TEST, anomaly_fraction=0.6, random_state=seed + 1, **made
        )
        print(f"{kind}: learning from {len(train.images)} normal images", flush=True)
        maps = {}
        for weights, max_iter in (("random", 0), ("trained", args.max_iter)):
            est = make_estimator(args, max_iter).fit(train.images)
            results = est.inspect(test.images)
            found, scores = in_thresholds(np.stack(results.maps), est), results.scores
            rows.append([kind, weights, *rate(test, found, scores, est.offset_)])
            maps[weights] = found, scores < est.offset_
        panels.append((test, maps))
    print_rows(rows)
    draw(panels, args.output)
    seconds = time.perf_counter() - start
    print(f"\nwrote {args.output}; {seconds:.0f} s in all")
    return 0


def make_estimator(args, max_iter):
    """Make an estimator; one that trains says how far it has come."""
    return PatchSVDD(
        max_iter=max_iter,
        batch_size=_BATCH_SIZE,
        strides=_STRIDES,
        contamination=0.05,
        device=args.device,
        random_state=args.random_state,
        verbose=int(max_iter > 0),
    )


def rate(test, maps, scores, offset):
    """Return the figures of a row."""
    good, alarms = test.labels == 1, scores < offset
    missed = collections.Counter(test.defects[~good & ~alarms])
    return [
        f"{detection_auroc(test.labels, scores):.3f}",
        f"{segmentation_auroc(test.masks, maps):.3f}",
        f"{offset:.3g}",
        f"{alarms[good].sum()} of {good.sum()}",
        f"{alarms[~good].sum()} of {(~good).sum()}",
        ", ".join(f"{n} {name}" for name, n in sorted(missed.items())) or "none",
    ]


def print_rows(rows):
    """Print a table, its columns as wide as they need to be."""
    head = ["kind", "weights", "image AUROC", "pixel AUROC", "threshold"]
    head += ["false alarms", "found", "missed"]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print()
    for row in (head, *rows):
        cells = (cell.ljust(n) for cell, n in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def draw(panels, output):
    """Draw one normal image and one of each defect, for every kind side by side."""
    plt = import_pyplot()
    figure = plt.figure(figsize=(8.2 * len(panels), 2.1 * _N_SHOWN), dpi=72)
    for panel, (test, maps) in zip(
        figure.subfigures(1, len(panels)), panels, strict=True
    ):
        _, shown = np.unique(test.defects, return_index=True)
        shown = sorted(shown)[:_N_SHOWN]  # the normal images come first
        axes = panel.subplots(_N_SHOWN, 4)
        for axis in axes[len(shown) :].flat:
            axis.set_axis_off()
        for column, (weights, some) in zip((2, 3), maps.items(), strict=True):
            draw_maps(test, *some, shown, axes[: len(shown), [0, 1, column]])
            axes[0, column].set_title(f"{weights} weights", fontsize="small")
    figure.savefig(output, bbox_inches="tight")
    plt.close(figure)


def draw_maps(test, maps, alarms, shown, axes):
    """Draw some images and their maps, and below each map what `predict` says."""
    from skpatchsvdd.plotting import AnomalyMapDisplay

    AnomalyMapDisplay.from_predictions(
        test.images[shown],
        maps[shown],
        masks=test.masks[shown],
        titles=[test.defects[i] for i in shown],
        axes=axes,
        vmax=2,  # the alarm level, 1, is the middle of the colours
    )
    for axis, alarm in zip(axes[:, -1], alarms[shown], strict=True):
        axis.set_xlabel("alarm" if alarm else "no alarm", fontsize="small")


def import_pyplot():
    """Return matplotlib's pyplot, drawing to files."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "the demo draws with matplotlib: pip install matplotlib"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
