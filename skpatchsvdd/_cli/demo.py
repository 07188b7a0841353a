"""The command ``demo``: what the package does, on synthetic images."""

import collections
import time

import numpy as np

from skpatchsvdd._cli.learning import describe_spread
from skpatchsvdd._cli.maps import in_thresholds
from skpatchsvdd._patch_svdd import PatchSVDD
from skpatchsvdd._plotting import import_pyplot
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.metrics import detection_auroc, segmentation_auroc

# A part and a material, small enough for about a minute on two cores, with enough good
# images to learn from and to test that the share of false alarms is little by chance.
_KINDS = ("gear", "fabric")
_IMAGE_SIZE, _N_TRAIN, _N_GOOD, _N_DEFECTIVE = 192, 60, 46, 24
_FALSE_ALARMS = 0.02
_N_SHOWN = 6
# Colours to be told apart on any ground: what was found, and what is there.
_FOUND, _TRUE = "#ff2a2a", "#ffffff"


def run(args):
    """Fit to a part and to a material, print what is found, draw a picture."""
    import_pyplot()  # before the work, not after it
    start = time.perf_counter()
    panels, rows = [], []
    for kind in _KINDS:
        made = {"image_size": _IMAGE_SIZE, "kind": kind}
        train = make_textures(_N_TRAIN, random_state=args.random_state, **made)
        test = make_textures(
            _N_GOOD + _N_DEFECTIVE,
            anomaly_fraction=_N_DEFECTIVE / (_N_GOOD + _N_DEFECTIVE),
            random_state=args.random_state + 1,
            **made,
        )
        print(f"{kind}: learning from {len(train.images)} normal images", flush=True)
        est = PatchSVDD(
            false_alarm_rate=_FALSE_ALARMS,
            device=args.device,
            random_state=args.random_state,
        )
        results = est.fit(train.images).inspect(test.images)
        maps = in_thresholds(np.stack(results.maps), est)
        rows.append([kind, *_measure(test, maps, results)])
        panels.append((kind, test, results, maps))
    _print_rows(rows)
    k = max(int(_FALSE_ALARMS * (_N_TRAIN + 1)), 1)
    share = f"{_FALSE_ALARMS:.0%} of good images may raise a false alarm"
    print(f"\n{share}; {describe_spread(k, _N_TRAIN)}")
    draw(panels, args.output)
    seconds = time.perf_counter() - start
    print(f"\nwrote {args.output}; {seconds:.0f} s in all")
    return 0


def _measure(test, maps, results):
    """Return the figures of a row."""
    good, alarms = test.labels == 1, results.labels == -1
    missed = collections.Counter(test.defects[~good & ~alarms])
    return [
        f"{detection_auroc(test.labels, results.scores):.3f}",
        f"{segmentation_auroc(test.masks, maps):.3f}",
        f"{alarms[good].sum()} of {good.sum()}",
        f"{alarms[~good].sum()} of {(~good).sum()}",
        ", ".join(f"{n} {name}" for name, n in sorted(missed.items())) or "none",
    ]


def _print_rows(rows):
    alarms = f"false alarms (about {_FALSE_ALARMS:.0%} allowed)"
    head = ["kind", "image AUROC", "pixel AUROC", alarms, "found", "missed"]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print()
    for row in (head, *rows):
        cells = (cell.ljust(n) for cell, n in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def draw(panels, output):
    """Draw a normal image and one of each defect, and below each its map."""
    plt = import_pyplot()
    plt.switch_backend("Agg")  # which draws to files, also without a screen
    size = (2.1 * _N_SHOWN, 4.8 * len(panels))
    figure, axes = plt.subplots(
        2 * len(panels), _N_SHOWN, figsize=size, dpi=80, layout="constrained"
    )
    for axis in axes.flat:
        axis.set_axis_off()
    for i, (kind, test, results, maps) in enumerate(panels):
        _, firsts = np.unique(test.defects, return_index=True)
        for column, k in enumerate(sorted(firsts)[:_N_SHOWN]):  # normal ones come first
            name = test.defects[k] if test.labels[k] == -1 else "good"
            upper, lower = axes[2 * i, column], axes[2 * i + 1, column]
            _draw_image(upper, test.images[k], results.masks[k], test.masks[k])
            verdict = "alarm" if results.labels[k] == -1 else "no alarm"
            upper.set_title(f"{kind}: {name}\n{verdict}, p = {results.p_values[k]:.2f}")
            # The alarm level, 1, is the middle of the colours, or half a high peak.
            look = {"cmap": "inferno", "interpolation": "bilinear"}
            lower.imshow(maps[k], vmin=0, vmax=max(2, maps[k].max() / 2), **look)
    figure.supxlabel(
        "red: what was found     dashed: where the defect is     below: anomaly maps",
        fontsize="medium",
    )
    figure.savefig(output)
    plt.close(figure)


def _draw_image(axis, image, found, mask):
    """Draw an image, and outlines of what was found and of what is there."""
    axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
    looks = (mask, _TRUE, "dashed", 0.8), (found, _FOUND, "solid", 1.6)
    for area, color, style, width in looks:
        if area.any() and not area.all():
            lines = {"colors": color, "linestyles": style, "linewidths": width}
            axis.contour(area, levels=[0.5], **lines)
