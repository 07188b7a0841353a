"""The commands: a table of figures, or a picture of images or features."""

import sys

from _common import find_categories, machine_name, print_json, print_table
from _hooks import check_device

from paper.arguments import parse_arguments
from paper.images import Images
from paper.pictures import draw_picture
from paper.rows import make_means, make_rows, printable
from paper.run import run_all
from paper.tables import TABLES, Choice
from paper.views import VIEWS, draw_view


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
