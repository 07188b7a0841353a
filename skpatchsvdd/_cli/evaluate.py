"""The command evaluate."""

import csv
import json
import warnings
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.files import check_sizes, make_folder, tell_skipped
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.status import OK
from skpatchsvdd._cli.table import as_cell
from skpatchsvdd._cli.text import count, printable
from skpatchsvdd._report import Page
from skpatchsvdd._utils import replaced_when_whole
from skpatchsvdd._version import __version__
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import (
    best_f1,
    detection_auroc,
    pro_score,
    segmentation_auroc,
)

# What -o writes besides the page; not the table of `inspect`, which it may lie beside.
_FIGURES, _TABLE = "evaluation.json", "evaluation.csv"
_COLUMNS = ("file", "defect", "verdict", "score", "p_value", "n_regions")
_OF_PIXELS = ("precision", "recall", "f1")
# Any name of a file can be written so; by the mark at its beginning spreadsheets know
# that it is UTF-8.
_TEXT = {"encoding": "utf-8-sig", "errors": "backslashreplace"}


def run(args):
    """Print how well a model separates images, and pixels, that are labelled."""
    _check_test(args.folder)
    if args.output:
        make_folder(args.output)
    est = load_model(args.model, args.device, args.encoder)
    test = _load_test(args.folder, args.strict)
    check_sizes(test.filenames, est)
    good = test.labels == 1
    if good.all() or not good.any():
        raise ValueError(
            f"{args.folder} must hold good and defective images, in test/good and "
            "test/DEFECT."
        )
    results = est.inspect(test.images, explain=bool(args.output))
    figures = _measure(test, results)
    _print_figures(figures)
    if args.output:
        folder = Path(args.output)
        about = {"model": args.model, "folder": args.folder, "version": __version__}
        _write_figures(folder / _FIGURES, about | figures)
        _write_table(folder / _TABLE, test, results)
        title = f"Evaluation of {Path(args.model).name}"
        page = Page(est, title, model=args.model)
        page.add(test.filenames, results, test.labels, masks=test.masks)
        page.write(folder / "report.html")
        print(f"wrote {folder}; open {folder / 'report.html'} in a browser")
    return OK


def _check_test(folder):
    """Raise if a folder that is there has no test/."""
    if Path(folder).is_dir() and not Path(folder, "test").is_dir():
        raise FileNotFoundError(
            f"{folder} has no folder test/, in which good/ and a folder for each kind "
            "of defect are expected. Pass the folder that holds test/."
        )


def _load_test(folder, strict):
    """Load labelled images; those that cannot be read are named and passed over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what is skipped is told below
        test = load_mvtec_ad(folder, split="test", on_error="skip")
    tell_skipped([reason for _, reason in test.skipped], strict)
    return test


def _measure(test, results):
    """Return the figures of an evaluation by name, numbers that JSON can hold."""
    good, alarms = test.labels == 1, results.labels == -1
    pixel_auroc = pro = pixels = None
    counts = _count_pixels(test, results)
    if counts is not None:
        pixel_auroc = float(segmentation_auroc(test.masks, results.maps))
        pro = float(pro_score(test.masks, results.maps))
        pixels = _describe_pixels(counts)
    found = {}
    for kind in sorted(set(test.defects[~good].tolist())):
        is_kind = test.defects == kind
        some = good | is_kind
        found[kind] = {
            "found": int(alarms[is_kind].sum()),
            "n_images": int(is_kind.sum()),
            "image_auroc": float(
                detection_auroc(test.labels[some], results.scores[some])
            ),
        }
        if counts is not None:
            found[kind]["pixels"] = _describe_pixels(counts[is_kind])
    return {
        "n_images": len(good),
        "n_defective": int(np.sum(~good)),
        "n_skipped": len(test.skipped),
        "image_auroc": float(detection_auroc(test.labels, results.scores)),
        "best_f1": float(best_f1(test.labels, results.scores)),
        "pixel_auroc": pixel_auroc,
        "pro": pro,
        "pixels": pixels,
        "false_alarms": {"found": int(alarms[good].sum()), "n_images": int(good.sum())},
        "defects": found,
        "skipped": [file for file, _ in test.skipped],
    }


def _count_pixels(test, results):
    """Return, for each image, pixels found rightly, found at all, and defective."""
    if test.masks is None:
        return None
    pairs = zip(test.masks, results.masks, strict=True)
    return np.array(
        [
            (np.sum((truth > 0) & mask), mask.sum(), np.sum(truth > 0))
            for truth, mask in pairs
        ]
    )


def _describe_pixels(counts):
    """Return precision, recall and F1 of the pixels of some images, None of nothing."""
    right, found, defective = (int(x) for x in np.atleast_2d(counts).sum(axis=0))

    def divide(a, b):
        return a / b if b else None

    parts = divide(right, found), divide(right, defective)
    values = (*parts, divide(2 * right, found + defective))
    return dict(zip(_OF_PIXELS, values, strict=True))


def _say_pixels(pixels):
    shown = {x: "-" if value is None else f"{value:.3f}" for x, value in pixels.items()}
    return f"precision {shown['precision']}, recall {shown['recall']}, F1 {shown['f1']}"


def _print_figures(figures):
    n_images, n_defective = figures["n_images"], figures["n_defective"]
    print(f"{count(n_images, 'image')}, {n_defective} of them defective")
    if figures["n_skipped"]:
        print(f"not counted   {figures['n_skipped']} that could not be read")
    print(f"image AUROC   {figures['image_auroc']:.3f}")
    print(f"best F1       {figures['best_f1']:.3f}")
    if figures["pixel_auroc"] is not None:
        print(f"pixel AUROC   {figures['pixel_auroc']:.3f}")
        print(f"PRO           {figures['pro']:.3f}")
        print(f"pixels found  {_say_pixels(figures['pixels'])}")
    alarms = figures["false_alarms"]
    print(f"false alarms  {alarms['found']} of {alarms['n_images']}")
    for kind, found in figures["defects"].items():
        name = printable(kind)
        print(f"found         {found['found']} of {found['n_images']} {name}")
        more = f"image AUROC {found['image_auroc']:.3f}"
        if "pixels" in found:
            more += f"; pixels: {_say_pixels(found['pixels'])}"
        print(f"              {more}")


def _write_figures(path, figures):
    with replaced_when_whole(path) as partial:
        partial.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


def _write_table(path, test, results):
    """Write a row for each image."""
    with (
        replaced_when_whole(path) as partial,
        partial.open("w", newline="", **_TEXT) as stream,
    ):
        writer = csv.writer(stream)
        counts = _count_pixels(test, results)
        more = [f"pixel_{x}" for x in _OF_PIXELS] if counts is not None else []
        writer.writerow((*_COLUMNS, *more))
        for i, file in enumerate(test.filenames):
            verdict = "abnormal" if results.labels[i] == -1 else "normal"
            score, p_value = results.scores[i], results.p_values[i]
            row = (as_cell(file), as_cell(test.defects[i]), verdict, f"{score:.6g}")
            row += (f"{p_value:.4g}", len(results.regions[i]))
            if counts is not None:
                values = _describe_pixels(counts[i]).values()
                row += tuple("" if x is None else f"{x:.4f}" for x in values)
            writer.writerow(row)
