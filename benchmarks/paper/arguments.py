"""What the command line of the paper's experiments says, checked."""

import importlib.util
import math
from pathlib import Path

from _common import make_parser
from _hooks import check_device

from paper import __doc__ as description
from paper.ablations import FLAT_PATCH
from paper.pictures import PICTURES
from paper.tables import SWEEPS, TABLES
from paper.views import VIEWS


def parse_arguments():
    parser = make_parser(description)
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
