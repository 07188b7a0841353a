"""The command evaluate."""

import csv
import json
import warnings
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.files import find_misfit, make_folder, tell_skipped
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.table import as_cell
from skpatchsvdd._cli.terminal import OK, count, printable
from skpatchsvdd._images import read_shape
from skpatchsvdd._report import Page
from skpatchsvdd._utils import replaced_when_whole
from skpatchsvdd._version import __version__
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import best_f1, detection_auroc, pro_score, segmentation_auroc

# What -o writes besides the page; not the table of `inspect`, which it may lie beside.
_FIGURES, _TABLE = "evaluation.json", "evaluation.csv"
_COLUMNS = ("file", "defect", "verdict", "score", "p_value", "n_regions")
_OF_PIXELS = ("precision", "recall", "f1")
# Any file name can be written so, and spreadsheets know that it is UTF-8.
_TEXT = {"encoding": "utf-8-sig", "errors": "backslashreplace"}


def run(args):
    """Print how well a model separates images, and pixels, that are labelled."""
    if Path(args.folder).is_dir() and not Path(args.folder, "test").is_dir():
        raise FileNotFoundError(
            f"{args.folder} has no folder test/, in which good/ and a folder for each "
            "kind of defect are expected. Pass the folder that holds test/."
        )
    folder = make_folder(args.output) if args.output else None
    est = load_model(args.model, args.device, args.encoder)
    test = _load_test(args.folder, args.strict, est)
    results = est.inspect(test.images, explain=folder is not None)
    counts = _count_pixels(test, results)
    figures = _measure(test, results, counts)
    _print_figures(figures)
    if folder is not None:
        about = {"model": args.model, "folder": args.folder, "version": __version__}
        with replaced_when_whole(folder / _FIGURES) as partial:
            partial.write_text(json.dumps(about | figures, indent=2) + "\n", "utf-8")
        _write_table(folder / _TABLE, test, results, counts)
        title = f"Evaluation of {Path(args.model).name}"
        page = Page(est, title, model=args.model)
        page.add(test.filenames, results, test.labels, masks=test.masks)
        page.write(folder / "report.html")
        print(f"wrote {folder}; open {folder / 'report.html'} in a browser")
    return OK


def _load_test(folder, strict, est):
    """Load labelled images; those that cannot be read are named and passed over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what is skipped is printed below
        test = load_mvtec_ad(folder, split="test", on_error="skip")
    tell_skipped([reason for _, reason in test.skipped], strict)
    for file in test.filenames:
        if reason := find_misfit(file, read_shape(file), est):
            raise ValueError(reason)
    if len(set(test.labels)) < 2:
        raise ValueError(
            f"{folder} must hold good and defective images, in test/good and "
            "test/DEFECT."
        )
    return test


def _measure(test, results, counts):
    """Return the figures of an evaluation by name, numbers that JSON can hold."""
    good, alarms = test.labels == 1, results.labels == -1
    of_pixels = dict.fromkeys(("pixel_auroc", "pro", "pixels"))
    if counts is not None:
        auroc = segmentation_auroc(test.masks, results.maps)
        pro = pro_score(test.masks, results.maps)
        of_pixels = {"pixel_auroc": float(auroc), "pro": float(pro)}
        of_pixels["pixels"] = _describe_pixels(counts)
    return {
        "n_images": len(good),
        "n_defective": int(np.sum(~good)),
        "n_skipped": len(test.skipped),
        "image_auroc": float(detection_auroc(test.labels, results.scores)),
        "best_f1": float(best_f1(test.labels, results.scores)),
        **of_pixels,
        "false_alarms": {"found": int(alarms[good].sum()), "n_images": int(good.sum())},
        "defects": {
            kind: _measure_kind(test, results, counts, kind)
            for kind in sorted(set(test.defects[~good].tolist()))
        },
        "skipped": [file for file, _ in test.skipped],
    }


def _measure_kind(test, results, counts, kind):
    """Return the figures of one kind of defect."""
    is_kind = test.defects == kind
    compared = is_kind | (test.labels == 1)
    auroc = detection_auroc(test.labels[compared], results.scores[compared])
    figures = {
        "found": int(np.sum(results.labels[is_kind] == -1)),
        "n_images": int(is_kind.sum()),
        "image_auroc": float(auroc),
    }
    if counts is not None:
        figures["pixels"] = _describe_pixels(counts[is_kind])
    return figures


def _count_pixels(test, results):
    """Return, for each image, pixels found rightly, found at all, and defective."""
    if test.masks is None:
        return None
    pairs = zip(test.masks, results.masks, strict=True)
    return np.array(
        [(np.sum(truth & mask), mask.sum(), truth.sum()) for truth, mask in pairs]
    )


def _describe_pixels(counts):
    """Return precision, recall and F1 of the pixels of some images, None of nothing."""
    right, found, defective = (int(x) for x in np.atleast_2d(counts).sum(axis=0))
    parts = (right, found), (right, defective), (2 * right, found + defective)
    values = (a / b if b else None for a, b in parts)
    return dict(zip(_OF_PIXELS, values, strict=True))


def _say_pixels(pixels):
    precision, recall, f1 = ("-" if x is None else f"{x:.3f}" for x in pixels.values())
    return f"precision {precision}, recall {recall}, F1 {f1}"


def _print_figures(figures):
    n_images, n_defective = figures["n_images"], figures["n_defective"]
    print(f"{count(n_images, 'image')}, {n_defective} of them defective")
    if figures["n_skipped"]:
        print(f"not counted   {figures['n_skipped']} that could not be read")
    print(f"image AUROC   {figures['image_auroc']:.3f}")
    print(f"best F1       {figures['best_f1']:.3f}")
    if figures["pixels"] is not None:
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


def _write_table(path, test, results, counts):
    """Write a row for each image."""
    with (
        replaced_when_whole(path) as partial,
        partial.open("w", newline="", **_TEXT) as stream,
    ):
        writer = csv.writer(stream)
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
