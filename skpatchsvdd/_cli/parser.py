"""The parser of all commands and their options."""

import argparse

from skpatchsvdd._cli.text import printable
from skpatchsvdd._cli.values import (
    parse_count,
    parse_factor,
    parse_fraction,
    parse_kinds,
    parse_megabytes,
    parse_part,
    parse_port,
    parse_size,
    parse_working_size,
)
from skpatchsvdd._version import __version__


class _HelpFormatter(argparse.HelpFormatter):
    """Shows the default of every option that has one, if its text does not say it."""

    def _get_help_string(self, action):
        text = action.help
        if not action.option_strings or action.required or "default" in text:
            return text
        if action.default is argparse.SUPPRESS:  # --help and --version
            return text
        if action.default is None or action.default is False:
            return f"{text} (default: {'none' if action.default is None else 'off'})"
        return f"{text} (default: %(default)s)"


class _Parser(argparse.ArgumentParser):
    def __init__(self, **kwargs):
        super().__init__(formatter_class=_HelpFormatter, **kwargs)

    def error(self, message):
        """End with a message; what was typed, or matched by a shell, stays a line."""
        super().error(printable(message))


def make_parser():
    """Make the parser of all commands."""
    parser = _Parser(
        prog="skpatchsvdd",
        description="Find what is abnormal in images, learnt from normal images alone: "
        "fit to a folder of good ones, then inspect others.",
        epilog="Example: skpatchsvdd fit good/ -o part.model && skpatchsvdd inspect "
        "part.model new/ -o results",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    for add_command in (
        *(_add_fit, _add_inspect, _add_evaluate, _add_update, _add_calibrate),
        *(_add_export, _add_serve, _add_demo),
    ):
        add_command(commands)
    return parser


def _add_fit(commands):
    fit = commands.add_parser(
        "fit",
        help="learn from images of good parts and save a model",
        description="Learn what is normal from images of good parts, in folders and "
        "all folders below them, and save a model.",
        epilog="Example: skpatchsvdd fit good/ -o part.model --image-size 256",
    )
    add = fit.add_argument
    add("images", nargs="+", help="folders or files of normal images")
    add("-o", "--output", required=True, help="model file to write")
    add(
        "--image-size",
        type=parse_working_size,
        metavar="PIXELS",
        help="what images are resized to: one number, or height and width as in "
        "192x256, or original, which keeps all pixels; by default large ones are made "
        "smaller, to as many pixels as 576x768 has, others stay as they are, and they "
        "become 256 x 256 if they differ",
    )
    add(
        "--false-alarm-rate",
        type=float,
        metavar="FRACTION",
        help="fraction of new normal images that may raise an alarm (false positive "
        "rate); by default about one in as many as there are training images",
    )
    add(
        "--bank-size",
        type=parse_part,
        metavar="N",
        help="normal patches of each scale that the memory bank keeps, a number or a "
        "fraction such as 0.1; by default all, up to 1 GiB of them",
    )
    add(
        "--roi",
        metavar="MASK",
        help="mask image: what is black in it is ignored, what is white is inspected",
    )
    add(
        "--group-by",
        choices=("folder", "name", "none"),
        help="which images belong together, as pictures of one lot or tiles of one "
        "sheet do: those in one folder, or those whose names are the same up to the "
        'last "_", or none; by default those that look like several pictures of one '
        "piece",
    )
    add(
        "--max-iter",
        type=int,
        metavar="STEPS",
        help="training steps; 0 does not train; by default 200, of hierarchical more",
    )
    add("--random-state", type=int, default=0, metavar="SEED", help="seed of all draws")
    add(
        "--encoder",
        metavar="NAMES",
        help="what makes features: procedural, hierarchical, or a torch module of your "
        "own as package.module:name, which is imported, and called without arguments "
        "if it is not a module; several, comma-separated, are used together; by "
        "default auto",
    )
    _add_common(fit, device="auto")
    _add_strict(fit)


def _add_inspect(commands):
    inspect = commands.add_parser(
        "inspect",
        help="say which images are abnormal, and where",
        description="Inspect images and write report.html, a page to look through "
        "them, results.csv and, for each image, a picture of what is abnormal: yellow "
        "at the threshold, red at twice as much. What cannot be inspected has a row, "
        'too, that says "unreadable" and why.',
        epilog="Exit status: 0 if all images are normal, 3 if one is abnormal, 4 if "
        "none is but some could not be inspected, 1 if something went wrong, 130 after "
        "Ctrl-C. A watch ends by Ctrl-C, with the status of the images that it has "
        "seen. Example: skpatchsvdd inspect part.model new/ -o results",
    )
    add = inspect.add_argument
    add("model", help="model file, written by fit")
    add("images", nargs="*", help="folders or files of images")
    add(
        "--watch",
        metavar="FOLDER",
        help="inspect what arrives in a folder, until interrupted by Ctrl-C; started "
        "again, it goes on where it was",
    )
    add("-o", "--output", required=True, help="folder to write to")
    _add_threshold(inspect)
    add(
        "--maps",
        type=parse_kinds,
        default=["overlay"],
        metavar="KINDS",
        help="what to write of each map, comma-separated: overlay, a picture of the "
        "image with outlines and its map, which is the default; npy, its numbers; png, "
        "its numbers as 16 bits of grey, of which the threshold is 10000; mask, white "
        "where an image is abnormal",
    )
    add("--no-maps", action="store_true", help="write no maps")
    add("--no-report", action="store_true", help="write no page")
    _add_encoder(inspect)
    _add_common(inspect)
    _add_strict(
        inspect,
        "read all files first, and end if one could not be inspected; with --watch, "
        "end at the first of them; by default each has a row that says why",
    )


def _add_threshold(parser):
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--false-alarm-rate",
        type=parse_fraction,
        metavar="P",
        help="raise an alarm at p-values of at most P: for about this fraction of new "
        "normal images. With n training images no p-value is below 1 / (n + 1): a "
        "smaller P counts as that. By default as the model was fitted",
    )
    group.add_argument(
        "--threshold",
        type=parse_factor,
        metavar="FACTOR",
        help="multiply the model's threshold, as the slider of the page does: less "
        "than 1 raises more alarms",
    )


def _add_evaluate(commands):
    evaluate = commands.add_parser(
        "evaluate",
        help="measure a model on images whose defects are known",
        description="Measure a model on a folder in MVTec AD's layout: test/good, "
        "test/DEFECT and, for figures of pixels, ground_truth/DEFECT/NAME_mask.png.",
        epilog="Example: skpatchsvdd evaluate part.model data/part",
    )
    add = evaluate.add_argument
    add("model", help="model file, written by fit")
    add("folder", help="folder that holds test/")
    add(
        "-o",
        "--output",
        help="folder for report.html, a page, evaluation.json, the figures, and "
        "evaluation.csv, what was found of each image, for spreadsheets; by default "
        "figures are only printed",
    )
    _add_encoder(evaluate)
    _add_common(evaluate)
    _add_strict(evaluate)


def _add_update(commands):
    update = commands.add_parser(
        "update",
        usage="%(prog)s [options] model images [images ...]\n"
        "       %(prog)s [options] model --review FILE",
        help="add more normal images, or a review, to a model, without training",
        description="Add normal images that look different from those of fit, such as "
        "another batch of material, to a model, without training it again. It says how "
        "many of them look abnormal to the model as it is, and lists the worst; if "
        "there are any, it writes nothing without --yes. Former models stay as "
        "backups, MODEL.bak to MODEL.bak5, unless -o names another file. With "
        "--review it learns what people have said of the images of a report.",
        epilog="Exit status: 0 if all is well, 3 if nothing was written because images "
        "look abnormal or a review would do harm, 1 if something went wrong. Examples: "
        "skpatchsvdd update part.model good_of_today/; skpatchsvdd update part.model "
        "--review review.json",
    )
    add = update.add_argument
    add("model", help="model file, written by fit")
    images = add(
        "images",
        nargs="+",
        help="folders or files of normal images; none with --review",
    )
    add(
        "--review",
        action=_InPlaceOf,
        other=images,
        metavar="FILE",
        help="learn from what a review says, a file saved by the page of an "
        "inspection: good images that raised an alarm, and defects",
    )
    add(
        "--images",
        dest="folder",
        metavar="FOLDER",
        help="where the images of --review are, if not where they were; what changes "
        "for all others in it is counted, too",
    )
    add("-o", "--output", help="model file to write; by default the same")
    add(
        "--group",
        metavar="NAME",
        help="the group that all of these images are of, for a model that was fitted "
        "with groups; by default none",
    )
    add(
        "--yes",
        action="store_true",
        help="write also if some of the images look abnormal, or if fewer of the "
        "reviewed ones would be right",
    )
    add("--dry-run", action="store_true", help="say what would change, write nothing")
    _add_encoder(update)
    _add_common(update)
    _add_strict(update)


def _add_calibrate(commands):
    calibrate = commands.add_parser(
        "calibrate",
        usage="%(prog)s [options] model images [images ...]\n"
        "       %(prog)s [options] model --training",
        help="set the threshold of a model anew, by good images in a new light",
        description="Set the threshold of a model by images of good parts that it was "
        "not fitted to, such as a new lot or a new light, and does not learn from: as "
        "they come, and not chosen for how abnormal they look. It says how many there "
        "are and how many are needed, where the threshold was and will be, and how "
        "many of them raise an alarm. If they are too few for the rate of false "
        "alarms, it writes nothing without --yes. Former models stay as "
        "backups, MODEL.bak to MODEL.bak5, unless -o names another file.",
        epilog="Exit status: 0 if all is well, 3 if nothing was written because there "
        "are too few images, 1 if something went wrong. Example: skpatchsvdd calibrate "
        "part.model good_of_today/",
    )
    add = calibrate.add_argument
    add("model", help="model file, written by fit")
    add("images", nargs="*", help="folders or files of normal images")
    add(
        "--training",
        action="store_true",
        help="go back to the threshold of the training images",
    )
    add(
        "--false-alarm-rate",
        type=parse_fraction,
        metavar="FRACTION",
        help="fraction of new normal images that may raise an alarm; by default that "
        "of the model",
    )
    add(
        "--group-by",
        choices=("folder", "name"),
        help="which images belong together, as for fit; by default none do",
    )
    add("-o", "--output", help="model file to write; by default the same")
    add(
        "--yes",
        action="store_true",
        help="write also if there are too few images for the rate of false alarms",
    )
    add("--dry-run", action="store_true", help="say what would change, write nothing")
    _add_encoder(calibrate)
    _add_common(calibrate)
    _add_strict(calibrate)


class _InPlaceOf(argparse.Action):
    """An option that takes the place of an argument, which else must be given."""

    def __init__(self, *args, other, **kwargs):
        super().__init__(*args, **kwargs)
        self._other = other

    def __call__(self, parser, namespace, value, option_string=None):
        setattr(namespace, self.dest, value)
        self._other.required = False


def _add_export(commands):
    export = commands.add_parser(
        "export",
        help="write a model as an ONNX file, which needs neither torch nor this",
        description="Write a model as an ONNX file, from bytes of images to score, "
        "p-value, verdict and map, for onnxruntime and others. Needs pip install onnx "
        "onnxscript.",
        epilog="Example: skpatchsvdd export part.model -o part.onnx --bank-size 0.1",
    )
    add = export.add_argument
    add("model", help="model file, written by fit")
    add("-o", "--output", required=True, help="file to write")
    add(
        "--bank-size",
        type=parse_part,
        metavar="N",
        help="normal patches of each scale that are kept, a number or a fraction such "
        "as 0.1, for a smaller and faster file; by default all",
    )
    add(
        "--input-size",
        type=parse_size,
        metavar="PIXELS",
        help="size of the images that the file takes and resizes, for a model that "
        "resizes: one number, or height and width as in 192x256; by default that of "
        "the training images",
    )
    _add_encoder(export)


def _add_serve(commands):
    serve = commands.add_parser(
        "serve",
        help="show a line live in a browser, and answer other programs",
        description="Inspect what arrives in a folder, and show it live in a browser: "
        "newest images, alarms that wait until somebody looks, counts and drift. What "
        "people say there can be tried, then learnt, and undone. Other programs send "
        "images to /inspect. Needs the extra serve: starlette, uvicorn, "
        "python-multipart, prometheus_client.",
        epilog="Example: skpatchsvdd serve part.model --watch new/",
    )
    add = serve.add_argument
    add("model", help="model file, written by fit")
    add("--watch", metavar="FOLDER", help="folder in which images arrive")
    add(
        "-o",
        "--output",
        metavar="FOLDER",
        help="folder of what was seen, which a restart goes on with; by default "
        "MODEL.line beside the model",
    )
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen at; others than this machine's own need a token",
    )
    add(
        "--port",
        type=parse_port,
        default=8000,
        help="port to listen at; 0 is any free one",
    )
    add(
        "--token-file",
        metavar="FILE",
        help="file that holds the token which all "
        "requests need; by default the variable SKPATCHSVDD_TOKEN, if it is set",
    )
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="name by which this machine is reached without a token, as behind a proxy",
    )
    add("--certificate", metavar="FILE", help="certificate, for https")
    add("--key", metavar="FILE", help="private key of the certificate")
    add("--json", action="store_true", help="print a line of JSON for each image")
    add(
        "--on-alarm",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="program to run at each alarm, with its arguments: all that follows, so "
        "this comes last; it gets the alarm as JSON on its standard input",
    )
    add(
        "--webhook",
        metavar="URL",
        help="address to post each alarm to, as JSON; tried again until it is taken",
    )
    add(
        "--queue",
        type=parse_count,
        default=64,
        metavar="N",
        help="images of requests that may wait; more are answered with 503",
    )
    add(
        "--max-megabytes",
        type=parse_megabytes,
        default=32.0,
        metavar="MB",
        help="largest request",
    )
    add(
        "--keep",
        type=parse_count,
        default=5000,
        metavar="N",
        help="images that keep their pictures, the last ones",
    )
    _add_encoder(serve)
    _add_common(serve)


def _add_demo(commands):
    demo = commands.add_parser(
        "demo",
        help="learn from synthetic normal images and find synthetic defects",
        description="Learn from synthetic normal images, find synthetic defects, print "
        "what is found and draw a picture. Takes about a minute on two cores.",
    )
    add = demo.add_argument
    add("--output", default="demo.png", help="picture to write")
    add("--device", default="auto", help="auto, cpu, cuda, ...")
    add("--random-state", type=int, default=0, help="seed of all draws")


def _add_encoder(parser):
    parser.add_argument(
        "--encoder",
        metavar="NAMES",
        help="the torch module that the model was fitted with, as package.module:name, "
        "if it was; by default the model holds all it needs",
    )


def _add_common(parser, device="that of the model, mostly auto"):
    parser.add_argument(
        "--max-pixels",
        type=parse_count,
        default=100_000_000,
        metavar="PIXELS",
        help="files of more pixels are not decoded, which can take minutes and all "
        "memory; 100,000,000 by default",
    )
    parser.add_argument("--device", help=f"auto, cpu, cuda, ...; by default {device}")


def _add_strict(parser, help="end at files that cannot be read; by default skipped"):
    parser.add_argument("--strict", action="store_true", help=help)
