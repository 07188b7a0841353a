"""The commands fit, inspect, evaluate and update."""

import argparse
import csv
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.demo import add_demo
from skpatchsvdd._cli.files import (
    COLUMNS,
    MAPS,
    TABLE,
    TEXT,
    check_output,
    check_sizes,
    choose_size,
    find_images,
    is_table,
    load_model,
    read_roi,
    save_model,
    watch_folder,
)
from skpatchsvdd._images import read_display
from skpatchsvdd._patch_svdd import PatchSVDD
from skpatchsvdd._report import Page, save_overlay
from skpatchsvdd._version import __version__
from skpatchsvdd.datasets import load_mvtec_ad
from skpatchsvdd.metrics import (
    best_f1,
    detection_auroc,
    pro_score,
    segmentation_auroc,
)

# What the commands return: all is well; something went wrong; an image is abnormal.
OK, FAILED, ABNORMAL = 0, 1, 3
# What can go wrong with files, parameters, memory and numbers: a line says what.
_EXPECTED = (
    *(ImportError, OSError, ValueError),
    *(RuntimeError, MemoryError, ArithmeticError),
)
# Images inspected, and written about, at a time: an interrupt loses no more.
_BATCH = 16
_N_LEAST_NORMAL = 5
# Images that a page shows, the last ones: of a watched folder, whose page is written
# again and again, and of others, as many as a browser can open.
_N_WATCHED, _N_SHOWN = 500, 5000
# Bytes of an image's name in that of its map.
_LONGEST_NAME = 200
_STATUS = (
    "Exit status: 0 if no image is abnormal, 3 if one is, 1 if something went wrong."
)


def main(argv=None):
    """Run the command line; return its exit status."""
    args = _parse(argv)
    if hasattr(sys.stdout, "reconfigure"):
        # A log shows how far it has come, and any name of a file can be printed.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)  # of every batch
            warnings.showwarning = _print_warning
            return args.run(args)
    except _EXPECTED as error:
        print(f"error: {str(error) or type(error).__name__}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _print_warning(message, *_, **__):
    print(f"warning: {message}", file=sys.stderr)


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog="skpatchsvdd",
        description=(
            "Find what is abnormal in images, learnt from normal images alone: "
            "fit to a folder of good ones, then inspect others."
        ),
        epilog="Example: skpatchsvdd fit good/ -o part.model && "
        "skpatchsvdd inspect part.model new/ -o results",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_fit(commands)
    _add_inspect(commands)
    _add_evaluate(commands)
    _add_update(commands)
    add_demo(commands)
    return parser.parse_args(argv)


def _parse_size(text):
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(
            f"must be one number, or height and width as in 192x256, got {text!r}"
        )
    return int(text) if len(parts) == 1 else tuple(map(int, parts))


def _add_fit(commands):
    fit = commands.add_parser(
        "fit",
        help="learn from images of good parts and save a model",
        description=(
            "Learn what is normal from images of good parts, in folders and all "
            "folders below them, and save a model."
        ),
        epilog="Example: skpatchsvdd fit good/ -o part.model --image-size 256",
    )
    fit.add_argument("images", nargs="+", help="folders or files of normal images")
    fit.add_argument("-o", "--output", required=True, help="model file to write")
    fit.add_argument(
        "--image-size",
        type=_parse_size,
        metavar="PIXELS",
        help="what images are resized to: one number, or height and width as in "
        "192x256; by default they stay as they are, and become 256 x 256 if they "
        "differ",
    )
    fit.add_argument(
        "--contamination",
        type=float,
        metavar="FRACTION",
        help="fraction of new normal images that may raise an alarm; by default about "
        "one in as many as there are training images",
    )
    fit.add_argument(
        "--roi",
        metavar="MASK",
        help="image that is black where nothing matters, and white elsewhere: what "
        "is there is never seen",
    )
    fit.add_argument("--max-iter", type=int, help="training steps; 0 does not train")
    fit.add_argument("--random-state", type=int, default=0, help="0 by default")
    _add_common(fit)
    fit.set_defaults(run=_run_fit)


def _add_inspect(commands):
    inspect = commands.add_parser(
        "inspect",
        help="say which images are abnormal, and where",
        description=(
            "Inspect images and write report.html, a page to look through them, "
            "results.csv and, for each image, a picture of what is abnormal: yellow "
            "at the threshold, red at twice as much."
        ),
        epilog=f"{_STATUS} Example: skpatchsvdd inspect part.model new/ -o results",
    )
    inspect.add_argument("model", help="model file, written by fit")
    inspect.add_argument("images", nargs="*", help="folders or files of images")
    inspect.add_argument(
        "--watch",
        metavar="FOLDER",
        help="inspect what arrives in a folder, until interrupted by Ctrl-C",
    )
    inspect.add_argument("-o", "--output", required=True, help="folder to write to")
    inspect.add_argument("--no-maps", action="store_true", help="write no pictures")
    inspect.add_argument("--no-report", action="store_true", help="write no page")
    _add_common(inspect)
    inspect.set_defaults(run=_run_inspect)


def _add_evaluate(commands):
    evaluate = commands.add_parser(
        "evaluate",
        help="measure a model on images whose defects are known",
        description=(
            "Measure a model on a folder in MVTec AD's layout: test/good, test/DEFECT "
            "and, for figures of pixels, ground_truth/DEFECT/NAME_mask.png."
        ),
        epilog="Example: skpatchsvdd evaluate part.model data/part",
    )
    evaluate.add_argument("model", help="model file, written by fit")
    evaluate.add_argument("folder", help="folder that holds test/")
    evaluate.add_argument("-o", "--output", help="folder for report.html, a page")
    evaluate.add_argument("--device", help="auto, cpu, cuda, ...")
    evaluate.set_defaults(run=_run_evaluate)


def _add_update(commands):
    update = commands.add_parser(
        "update",
        help="add more normal images to a model, without training",
        description=(
            "Add normal images that look different from those of fit, such as another "
            "batch of material, to a model, without training it again."
        ),
        epilog="Example: skpatchsvdd update part.model good_of_today/",
    )
    update.add_argument("model", help="model file, written by fit")
    update.add_argument("images", nargs="+", help="folders or files of normal images")
    update.add_argument(
        "-o", "--output", help="model file to write; by default the same"
    )
    update.add_argument(
        "--group",
        metavar="NAME",
        help="the group that all of these images are of, for a model that was fitted "
        "with groups",
    )
    _add_common(update)
    update.set_defaults(run=_run_update)


def _add_common(parser):
    parser.add_argument("--device", help="auto, cpu, cuda, ...; auto by default")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end at files that cannot be read; by default they are skipped",
    )


def _run_fit(args):
    """Fit to images, save the model, and print a summary."""
    start = time.perf_counter()
    check_output(args.output)
    files = find_images(args.images, args.strict)
    size = choose_size(files, args.image_size)
    est = PatchSVDD(
        image_size=size,
        contamination="auto" if args.contamination is None else args.contamination,
        max_iter="auto" if args.max_iter is None else args.max_iter,
        device=args.device or "auto",
        random_state=args.random_state,
        roi=read_roi(args.roi),
        verbose=1,
    )
    print(
        f"learning from {len(files)} images: seconds on a GPU, minutes on a CPU, more "
        "for large images"
    )
    est.fit(files)
    save_model(est, args.output)
    print(f"\nlearnt from {len(files)} images in {time.perf_counter() - start:.0f} s")
    _print_summary(est, files)
    print(f"wrote {args.output}")
    return OK


def _print_summary(est, files):
    height, width, _ = est.inspected_shape_
    patches = ", ".join(f"{n:,} of {k} x {k}" for k, n in est.bank_size_.items())
    n_alarms = int(np.sum(est.training_scores_ < est.offset_))
    print(f"inspected at {height} x {width} pixels; patches kept: {patches}")
    print(f"{est.n_iter_} training steps, lambda {est.lam_:g}")
    print(
        f"an image is abnormal below a score of {est.offset_:.4g}; "
        f"{n_alarms} of the images learnt from would be"
    )
    print("the least normal of them, to look at before you trust the others:")
    for i in np.argsort(est.training_scores_)[:_N_LEAST_NORMAL]:
        print(f"  {est.training_scores_[i]:12.4g}  {files[i]}")


def _run_inspect(args):
    """Inspect images; write a table and pictures, and print what is abnormal."""
    if bool(args.images) == bool(args.watch):
        raise ValueError("pass images to inspect, or --watch and a folder, not both.")
    est = load_model(args.model, args.device)
    folder = Path(args.output)
    if args.watch:
        batches = watch_folder(args.watch, est)
    else:
        files = find_images(args.images, args.strict, est)
        batches = (files[i : i + _BATCH] for i in range(0, len(files), _BATCH))
    folder.mkdir(parents=True, exist_ok=True)
    table = _Table(folder / TABLE, goes_on=bool(args.watch))
    n_images = n_abnormal = 0
    page = None
    if not args.no_report:
        limit = _N_WATCHED if args.watch else _N_SHOWN
        page = Page(est, f"Inspection by {Path(args.model).name}", limit)
    maps = None if args.no_maps else folder
    try:
        for some, results in _inspect_batches(est, batches, bool(args.watch)):
            rows = list(_tell_results(est, some, results, table.n_rows, maps))
            table.add(rows)
            n_images += len(rows)
            n_abnormal += sum(row[1] == "abnormal" for row in rows)
            if page is not None:
                page.add(some, results)
                if args.watch:
                    page.write(folder / "report.html")
    finally:  # also of what was inspected before an interrupt
        if page:
            page.write(folder / "report.html")
    print(f"{n_abnormal} of {n_images} images are abnormal; wrote {folder}")
    if page:
        print(f"open {folder / 'report.html'} in a browser")
    return ABNORMAL if n_abnormal else OK


def _inspect_batches(est, batches, goes_on):
    """Yield files and their results; with `goes_on` what fails is told and skipped."""
    for files in batches:
        try:
            results = est.inspect(files)
        except (OSError, ValueError) as error:
            if not goes_on:
                raise
            print(f"skipped: {error}", file=sys.stderr)
        else:
            yield files, results


class _Table:
    """The table of an inspection.

    A former one stays until there is something to write, and with `goes_on` rows are
    added to it.
    """

    def __init__(self, path, goes_on):
        self._path = path
        self._mode = "w"
        self.n_rows = 0
        if goes_on and path.exists():
            self.n_rows = self._count_rows()
            self._mode = "a"

    def _count_rows(self):
        if not is_table(self._path):
            raise ValueError(
                f"{self._path} is no table of an inspection that rows could be added "
                "to. Pass another folder to -o."
            )
        with self._path.open(newline="", **TEXT) as stream:
            return sum(1 for _ in csv.reader(stream)) - 1

    def add(self, rows):
        """Write rows."""
        with self._path.open(self._mode, newline="", **TEXT) as stream:
            writer = csv.writer(stream)
            if self._mode == "w":
                writer.writerow(COLUMNS)
            writer.writerows(rows)
        self._mode = "a"
        self.n_rows += len(rows)


def _tell_results(est, files, results, start, folder):
    """Yield a row of the table for each image; draw maps if there is a folder."""
    for i, file in enumerate(files):
        regions, drawn = results.regions[i], ""
        if folder is not None:
            drawn = f"{MAPS}/{start + i:05d}_{_shorten(Path(file).stem)}.png"
            one_map = results.maps[i] / -est.offset_
            save_overlay(read_display(file), one_map, folder / drawn)
        verdict = "abnormal" if results.labels[i] == -1 else "normal"
        score, p_value = results.scores[i], results.p_values[i]
        print(f"{verdict:8}  p {p_value:.3f}  {file}", flush=True)
        boxes = ";".join(
            "{top} {left} {bottom} {right} {area}".format(
                **{name: region[name] for name in regions.dtype.names}
            )
            for region in regions
        )
        row = (file, verdict, f"{score:.6g}", f"{p_value:.4g}", len(regions))
        yield (*row, boxes, drawn)


def _shorten(name):
    """Return as much of a name as leaves room for more, as text that can be encoded."""
    name = name.encode("utf-8", "backslashreplace")[:_LONGEST_NAME]
    return name.decode("utf-8", "ignore")


def _run_evaluate(args):
    """Print how well a model separates images, and pixels, that are labelled."""
    est = load_model(args.model, args.device)
    test = load_mvtec_ad(args.folder, split="test")
    check_sizes(test.filenames, est)
    results = est.inspect(test.images)
    good = test.labels == 1
    alarms = results.labels == -1
    if good.all() or not good.any():
        raise ValueError(
            f"{args.folder} must hold good and defective images, in test/good and "
            "test/DEFECT."
        )
    print(f"{len(good)} images, {np.sum(~good)} of them defective")
    print(f"image AUROC   {detection_auroc(test.labels, results.scores):.3f}")
    print(f"best F1       {best_f1(test.labels, results.scores):.3f}")
    if test.masks is not None:
        print(f"pixel AUROC   {segmentation_auroc(test.masks, results.maps):.3f}")
        print(f"PRO           {pro_score(test.masks, results.maps):.3f}")
    print(f"false alarms  {alarms[good].sum()} of {good.sum()}")
    for kind in sorted(set(test.defects[~good])):
        found = alarms[test.defects == kind]
        print(f"found         {found.sum()} of {len(found)} {kind}")
    if args.output:
        page = Page(est, f"Evaluation of {Path(args.model).name}")
        page.add(test.filenames, results, test.labels)
        page.write(Path(args.output) / "report.html")
        print(f"open {Path(args.output) / 'report.html'} in a browser")
    return OK


def _run_update(args):
    """Let images join a model, and save it."""
    check_output(args.output or args.model)
    est = load_model(args.model, args.device)
    if est.groups_ is not None and args.group is None:
        raise ValueError(
            f"{args.model} was fitted with groups of images that belong together. Pass "
            "--group and the name of the group, such as a lot, that these are of."
        )
    files = find_images(args.images, args.strict, est)
    groups = None if args.group is None else [args.group] * len(files)
    before = len(est.training_scores_)
    est.set_params(verbose=1).partial_fit(files, groups=groups)
    save_model(est, args.output or args.model)
    n_new = len(est.training_scores_) - before
    print(f"\n{n_new} of {len(files)} images joined; the others were known")
    print(f"an image is abnormal below a score of {est.offset_:.4g}")
    print(f"wrote {args.output or args.model}")
    return OK
