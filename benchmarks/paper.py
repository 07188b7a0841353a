"""The paper's experiments, one command each, on any folder in the MVTec AD layout.

TABLE is one of

  table1     detection and segmentation of every class
  losses     the SVDD loss, SVDD' alone, with the position task, and with the made-up
             defects of dense training, with intrinsic dimensions
  hierarchy  the flat encoder of K=64 against the hierarchical one
  scales     K=32, K=64 and both joined, from the same fits
  lambda     a sweep of lambda
  dimension  a sweep of D, the length of a feature, with intrinsic dimensions
  random     a random encoder and raw patches against a trained encoder
  time       seconds to inspect an image
  baselines  IsolationForest, OneClassSVM, LocalOutlierFactor, Deep SVDD and an
             autoencoder on the same images, and PyOD's DeepSVDD where it is installed
  maps       a picture: of each class an abnormal image and its maps
  tsne       a picture: of each class the features that each loss leads to, by t-SNE,
             in colours of their direction from the centre and sizes of the distance

det and seg are areas under the ROC curve of images and of pixels, means over the seeds,
with the paper's figures beside them where it prints any: for classes of MVTec AD, found
by the last part of a category's path, or for the mean of its 15 classes. "undone" is
the share of fits whose training failed and was undone, as PatchSVDD does with a
warning: their figures are those of random or of early weights. "ID", an intrinsic
dimension, is empty where features nearly all coincide, and so is its mean. The paper's
0.48 s an image are of an RTX 2080 Ti and an i7-5930K, with an approximate search.

PatchSVDD trains in its own, dense way. --training paper trains and inspects as the
paper does, with lambda=1e-3 where nothing else is said; it takes 12,000 steps.

Figures are kept in --cache, one file for each fit and machine. A run that was
interrupted goes on where it stopped, and tables share their fits, but for the table of
times. Images are known by the names and sizes of their files. Whoever changes the code
of the package should begin with an empty folder.

With an RBF kernel the one-class SVM is the classic SVDD, which is why there is one of
them. A picture can be had of losses, lambda and dimension. maps and tsne are nothing
but pictures: with one seed, and with fits of their own that are not kept.

Example: python benchmarks/paper.py table1 --data DATA --categories mvtec/bottle
Example: python benchmarks/paper.py losses --data DATA --quick --picture losses.png
Example: python benchmarks/paper.py maps --data DATA --picture maps.png
"""

import importlib.util
import math
import sys
from pathlib import Path

from _common import find_categories, machine_name, make_parser, print_json, print_table
from _hooks import FLAT_PATCH, check_device
from _paper_fits import Images
from _paper_pictures import PICTURES, draw_picture
from _paper_rows import make_means, make_rows, printable
from _paper_run import Cache, Run
from _paper_tables import SWEEPS, TABLES, Choice
from _paper_views import VIEWS, draw_view


def main():
    args = parse_arguments()
    device = check_device(args.device)
    choice = Choice(args.training, args.quick, args.values)
    categories = find_categories(args.data, args.categories)
    images = [Images(args.data, x, args.image_size, args.quick) for x in categories]
    if args.table in VIEWS:
        show(VIEWS[args.table], images, choice, device, args)
    else:
        measure(TABLES[args.table], images, choice, device, args)


def show(view, images, choice, device, args):
    """Draw a picture, from fits of its own."""
    lines = view.make_lines(choice)
    try:
        failures = draw_view(view, images, lines, args.seeds[0], device, args.picture)
    except KeyboardInterrupt:
        sys.exit("\ninterrupted: nothing is drawn")
    is_drawn = len(failures) < len(images)
    drawn = args.picture if is_drawn else "nothing is drawn"
    print(f"\n{machine_name(device)}: {drawn}")
    print_json(
        table=args.table,
        machine=machine_name(device),
        picture=args.picture if is_drawn else None,
        categories=[one.category for one in images],
        settings=[line.label for line in lines],
        failures=failures,
    )
    end_with(failures)


def measure(table, images, choice, device, args):
    """Fit what is not in the cache, and print a table."""
    lines = table.make_lines(choice)
    try:
        fits, failures = run_all(images, lines, device, args)
    except KeyboardInterrupt:
        sys.exit(f"\ninterrupted: the same command goes on from {args.cache}")
    rows = make_rows(fits, lines, table.columns)
    means = make_means(rows, lines, table.columns)
    report(rows, means, failures, device, args)
    if args.picture and rows:
        draw_picture(args.table, rows, means, lines, args.picture)
    print_json(
        table=args.table,
        machine=machine_name(device),
        training=args.training,
        quick=args.quick,
        rows=rows,
        means=means,
        failures=failures,
        fits=fits,
    )
    end_with(failures)


def end_with(failures):
    """End with an error if any fit failed."""
    if failures:
        sys.exit(f"failed: {len(failures)}, see above")


def parse_arguments():
    parser = make_parser(__doc__)
    names = [*TABLES, *VIEWS]
    parser.add_argument("table", metavar="TABLE", choices=names, help=" ".join(names))
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--categories", nargs="+", help="all below --data if not given")
    parser.add_argument(
        "--seeds", nargs="+", type=int, help="0 1 2, and 0 with --quick, if not given"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="20 images to train on, 20 to test, 20 steps: to see that it works",
    )
    parser.add_argument(
        "--cache",
        default="paper_cache",
        help="folder of figures to go on from, ./paper_cache if not given",
    )
    parser.add_argument(
        "--training", choices=("dense", "paper"), default="dense", help="of PatchSVDD"
    )
    parser.add_argument("--values", nargs="+", type=float, help="of a sweep")
    parser.add_argument(
        "--image-size", type=int, help="256, and 128 with --quick, if not given"
    )
    parser.add_argument("--picture", help="file for a picture")
    return check_arguments(parser, parser.parse_args())


def check_arguments(parser, args):
    """Complain before the first fit, not after the last."""
    if not Path(args.data).is_dir():
        parser.error(f"--data: there is no folder {args.data}")
    if args.values:
        check_values(parser, args)
    if args.table in VIEWS:
        args.picture = args.picture or f"{args.table}.png"
    if args.picture:
        check_picture(parser, args)
    try:
        check_device(args.device)
    except ValueError as error:
        parser.error(f"--device: {error}")
    if args.image_size is None:
        args.image_size = 128 if args.quick else 256
    if args.image_size < FLAT_PATCH:
        parser.error(f"--image-size must be at least {FLAT_PATCH}, the largest patches")
    args.seeds = list(dict.fromkeys(args.seeds or ([0] if args.quick else [0, 1, 2])))
    if min(args.seeds) < 0:
        parser.error(f"--seeds must not be negative, got {args.seeds}")
    if args.table in TABLES:
        make_cache(parser, args)
    return args


def make_cache(parser, args):
    try:
        Path(args.cache).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--cache must be a folder that can be written to: {error}")


def check_values(parser, args):
    if args.table not in SWEEPS:
        parser.error(f"--values is for {' and '.join(SWEEPS)}, not for {args.table}")
    if args.table == "dimension" and any(x < 1 or x % 1 for x in args.values):
        parser.error(f"--values must be positive integers, got {args.values}")
    if not all(0 <= x < math.inf for x in args.values):
        parser.error(f"--values must be numbers of at least 0, got {args.values}")
    args.values = tuple(dict.fromkeys(args.values))


def check_picture(parser, args):
    drawn = [*PICTURES, *VIEWS]
    if args.table not in drawn:
        parser.error(f"--picture is for {', '.join(drawn)}, not for {args.table}")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    if not Path(args.picture).absolute().parent.is_dir():
        parser.error(f"--picture: there is no folder {Path(args.picture).parent}")
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if Path(args.picture).suffix[1:] not in known:
        parser.error(f"--picture must end in one of {', '.join(known)}")


def run_all(images, lines, device, args):
    """Fit all that is not in the cache; return figures by line, and what failed."""
    pairs = [
        (shared, seed)
        for shared in group_lines(lines)
        for seed in (args.seeds if shared[0].is_seeded else args.seeds[:1])
    ]
    n_fits = len(images) * len(pairs)
    run = Run(Cache(args.cache), n_fits, device, args.quick)
    for one in images:
        for shared, seed in pairs:
            run.add(one, shared, seed)
        one.forget()
    return run.fits, run.failures


def group_lines(lines):
    """Group lines that share a fit."""
    groups = {}
    for line in lines:
        groups.setdefault((line.model, str(line.params)), []).append(line)
    return list(groups.values())


def report(rows, means, failures, device, args):
    print(f"\n{machine_name(device)}")
    if args.quick:
        print("--quick: few images and steps, no figures to quote")
    for part in (rows, means):
        if part:
            print()
            print_table(printable(part))
    if any(name.startswith("paper ") and x for row in means for name, x in row.items()):
        print("\nBeside 'mean' stand the paper's means of the 15 classes of MVTec AD.")
    for failure in failures:
        print(f"failed: {failure}")


if __name__ == "__main__":
    main()
