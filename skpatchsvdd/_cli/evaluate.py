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
from skpatchsvdd._cli.text import printable
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
# Any name of a file can be written so, and be read as UTF-8.
_TEXT = {"encoding": "utf-8", "errors": "backslashreplace"}


def run(args):
    """Print how well a model separates images, and pixels, that are labelled."""
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
    pixel_auroc = pro = None
    if test.masks is not None:
        pixel_auroc = float(segmentation_auroc(test.masks, results.maps))
        pro = float(pro_score(test.masks, results.maps))
    found = {}
    for kind in sorted(set(test.defects[~good].tolist())):
        of_kind = alarms[test.defects == kind]
        found[kind] = {"found": int(of_kind.sum()), "n_images": len(of_kind)}
    return {
        "n_images": len(good),
        "n_defective": int(np.sum(~good)),
        "n_skipped": len(test.skipped),
        "image_auroc": float(detection_auroc(test.labels, results.scores)),
        "best_f1": float(best_f1(test.labels, results.scores)),
        "pixel_auroc": pixel_auroc,
        "pro": pro,
        "false_alarms": {"found": int(alarms[good].sum()), "n_images": int(good.sum())},
        "defects": found,
        "skipped": [file for file, _ in test.skipped],
    }


def _print_figures(figures):
    n_images, n_defective = figures["n_images"], figures["n_defective"]
    print(f"{n_images} images, {n_defective} of them defective")
    if figures["n_skipped"]:
        print(f"not counted   {figures['n_skipped']} that could not be read")
    print(f"image AUROC   {figures['image_auroc']:.3f}")
    print(f"best F1       {figures['best_f1']:.3f}")
    if figures["pixel_auroc"] is not None:
        print(f"pixel AUROC   {figures['pixel_auroc']:.3f}")
        print(f"PRO           {figures['pro']:.3f}")
    alarms = figures["false_alarms"]
    print(f"false alarms  {alarms['found']} of {alarms['n_images']}")
    for kind, found in figures["defects"].items():
        name = printable(kind)
        print(f"found         {found['found']} of {found['n_images']} {name}")


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
        writer.writerow(_COLUMNS)
        for i, file in enumerate(test.filenames):
            verdict = "abnormal" if results.labels[i] == -1 else "normal"
            score, p_value = results.scores[i], results.p_values[i]
            row = (as_cell(file), as_cell(test.defects[i]), verdict, f"{score:.6g}")
            writer.writerow((*row, f"{p_value:.4g}", len(results.regions[i])))
