"""The options of each command."""

import argparse
from functools import partial

from skpatchsvdd._cli.values import (
    EXPORTS,
    KINDS,
    parse_contamination,
    parse_count,
    parse_names,
    parse_part,
    parse_port,
    parse_positive,
    parse_rate,
    parse_score,
    parse_size,
    parse_working_size,
)


class _InPlaceOfImages(argparse.Action):
    """An option that takes the place of images, which else must be given."""

    def __call__(self, parser, namespace, value, option_string=None):
        setattr(namespace, self.dest, True if self.nargs == 0 else value)
        next(x for x in parser._actions if x.dest == "images").required = False


def _option(usage, text, parse=None, **settings):
    """Describe an option as in "-o --output FOLDER": its names, and what follows."""
    names = [x for x in usage.split() if x.startswith("-")]
    rest = usage.split()[len(names) :]
    if rest:
        settings["metavar"] = rest[0]
    return names, {"help": text, "type": parse, **settings}


def _flag(name, text):
    return (name,), {"help": text, "action": "store_true"}


def _argument(name, text, **settings):
    return (name,), {"help": text, **settings}


def _device(default):
    return _option("--device", f"auto, cpu, cuda, ...; by default {default}")


def _images(more=""):
    return _argument("images", f"folders or files of images{more}", nargs="+")


# What commands share.
_MODEL = _argument("model", "model file, written by fit")
_NEW_MODEL = _option("-o --output", "model file to write; by default the same")
_SEED = _option("--random-state SEED", "seed of all draws", int, default=0)
_DRY_RUN = _flag("--dry-run", "say what would change, write nothing")
_STRICT = _flag("--strict", "end at files that cannot be read; by default skipped")
_MAX_PIXELS = _option(
    "--max-pixels PIXELS",
    "files of more pixels are not decoded, which can take minutes and all memory; "
    "100,000,000 by default",
    parse_count,
    default=100_000_000,
)
_ENCODER = _option(
    "--encoder NAMES",
    "the torch module that the model was fitted with, as package.module:name, if it "
    "was; by default the model holds all it needs",
)
_RUN = (_ENCODER, _MAX_PIXELS, _device("that of the model, mostly auto"))
_CHANGE = (_NEW_MODEL, _DRY_RUN, *_RUN)  # of commands that change a model

_FIT = (
    _images(" of good parts"),
    _option("-o --output", "model file to write", required=True),
    _option(
        "--image-size PIXELS",
        "what images are resized to, 256 or 192x256 (height and width); full, where "
        "small patches see all pixels and large ones a reduced image; or original, "
        "which keeps all pixels; by default 256 if their sizes differ, and large ones "
        "to as many pixels as 576x768 has",
        parse_working_size,
    ),
    _option(
        "--false-alarm-rate FRACTION",
        "fraction of new normal images that may raise an alarm (false positive rate); "
        "by default about one in as many as there are training images",
        float,
    ),
    _option(
        "--bank-size N",
        "normal patches of each scale that the memory bank keeps, a number or a "
        "fraction such as 0.1; by default all, up to 1 GiB",
        parse_part,
    ),
    _option(
        "--contamination FRACTION",
        "how many of the images may be defective: this fraction, the least plausible "
        "ones, is set aside and not learnt from; auto finds out how many",
        parse_contamination,
        default=0,
    ),
    _option(
        "--review FOLDER",
        "folder for suspects.html, a page on which people say which of the images "
        "that look defective are; update learns it",
    ),
    _option("--roi MASK", "mask image: what is white in it is inspected, and no more"),
    _option(
        "--group-by",
        "which images belong together: those in one folder, or whose names are the "
        'same up to the last "_", or none; by default pictures of one piece',
        choices=("folder", "name", "none"),
    ),
    _option(
        "--max-iter STEPS",
        "training steps; 0 does not train; by default 200, of hierarchical more",
        int,
    ),
    _SEED,
    _option(
        "--encoder NAMES",
        "what makes features, comma-separated: procedural, hierarchical, or a torch "
        "module of your own as package.module:name, which is imported, and called "
        "without arguments if it is not a module; by default auto",
        default="auto",
    ),
    _MAX_PIXELS,
    _device("auto"),
    _STRICT,
)
_THRESHOLDS = [
    _option(
        "--false-alarm-rate P",
        "raise an alarm at p-values of at most P: for about this fraction of new "
        "normal images, at least 1 / (n + 1) with n training images; by default as the "
        "model was fitted",
        parse_rate,
    ),
    _option(
        "--threshold FACTOR",
        "multiply the model's threshold, as the slider of the page does: less than 1 "
        "raises more alarms",
        parse_positive,
    ),
]
_INSPECT = (
    _MODEL,
    _images("; none with --watch"),
    _option(
        "--watch FOLDER",
        "inspect what arrives in a folder, until interrupted by Ctrl-C; started again, "
        "it goes on where it was",
        action=_InPlaceOfImages,
    ),
    _option("-o --output", "folder to write to", required=True),
    _THRESHOLDS,
    _option(
        "--maps KINDS",
        "what to write of each map, comma-separated: overlay, the default, a picture "
        "with outlines; npy, numbers; png, grey of 16 bits with the threshold at "
        "10000; mask, white where an image is abnormal",
        partial(parse_names, KINDS),
        default=["overlay"],
    ),
    _flag("--no-maps", "write no maps"),
    _option(
        "--export FORMATS",
        "what to write for other programs, comma-separated: coco, label-studio and "
        "cvat, files of polygons; masks, pictures in which regions are numbered; "
        "parquet, the table",
        partial(parse_names, EXPORTS),
        default=[],
    ),
    _flag("--no-report", "write no page"),
    *_RUN,
    _flag(
        "--strict",
        "read all files first, and end if one could not be inspected; with --watch, "
        "end at the first of them; by default each has a row that says why",
    ),
)
_EVALUATE = (
    _MODEL,
    _argument("folder", "folder that holds test/"),
    _option(
        "-o --output",
        "folder for report.html, a page, evaluation.json, the figures, and "
        "evaluation.csv, a row for each image; by default figures are only printed",
    ),
    *_RUN,
    _STRICT,
)
_UPDATE = (
    _MODEL,
    _images(" of good parts; none with --review"),
    _option(
        "--review FILE",
        "learn from what a review says, a file saved by the page of an inspection: "
        "good images that raised an alarm, and defects",
        action=_InPlaceOfImages,
    ),
    _option(
        "--images FOLDER",
        "where the images of --review are, if not where they were; what changes for "
        "all others in it is counted, too",
        dest="folder",
    ),
    _option(
        "--group NAME",
        "the group of all these images, for a model with groups; by default none",
    ),
    _flag(
        "--yes",
        "write also if some of the images look abnormal, or if fewer of the reviewed "
        "ones would be right",
    ),
    *_CHANGE,
    _STRICT,
)
_FILES = _argument("files", "images that the model was fitted to", nargs="+")
_FORGET = (_MODEL, _FILES, *_CHANGE)
_CALIBRATE = (
    _MODEL,
    _images(" of good parts; none with --training"),
    _option(
        "--training",
        "go back to the threshold of the training images",
        action=_InPlaceOfImages,
        nargs=0,
        default=False,
    ),
    _option(
        "--false-alarm-rate FRACTION",
        "fraction of new normal images that may raise an alarm; by default that of the "
        "model",
        parse_rate,
    ),
    _option(
        "--group-by",
        "which images belong together, as for fit; by default none do",
        choices=("folder", "name"),
    ),
    _flag("--yes", "write also if there are too few images for the false alarm rate"),
    *_CHANGE,
    _STRICT,
)
_THRESHOLD = (
    _MODEL,
    _option("--good FOLDER", "folders or files of good parts", nargs="+"),
    [
        _option(
            "--defective FOLDER",
            "folders or files of defective parts, of which none is to be missed",
            nargs="+",
        ),
        _option(
            "--at SCORE", "the score below which an image is abnormal", parse_score
        ),
        _option(
            "--false-alarm-rate FRACTION",
            "fraction of new normal images that may raise an alarm",
            parse_rate,
        ),
        _flag("--undo", "go back to the threshold of the model's false alarm rate"),
    ],
    _option(
        "--miss-cost COST",
        "what a defective image costs that is missed: the sum of costs is to be least; "
        "by default none is to be missed",
        parse_positive,
    ),
    _option(
        "--alarm-cost COST",
        "what a good image costs that raises an alarm; 1 by default",
        parse_positive,
    ),
    *_CHANGE,
    _STRICT,
)
_EXPORT = (
    _MODEL,
    _option("-o --output", "file to write", required=True),
    _option(
        "--input-size PIXELS",
        "size of the images that the file takes, for a model that resizes: one number, "
        "or height and width as in 192x256; by default that of the training images",
        parse_size,
    ),
    _ENCODER,
)
_SERVE = (
    _argument(
        "model",
        "model file, written by fit, or a file of several lines, such as station.toml",
        nargs="?",
    ),
    _option(
        "--line NAME=MODEL:SOURCE",
        "a line with its model and its source: a folder, a video, or the index or "
        "address of a camera; as often as there are lines, by default none",
        action="append",
        default=[],
    ),
    _option("--watch FOLDER", "folder in which images arrive"),
    _option(
        "-o --output FOLDER",
        "folder of what was seen, which a restart goes on with; by default MODEL.line "
        "beside the model",
    ),
    _option(
        "--host",
        "address to listen at; others than this machine's own need a token",
        default="127.0.0.1",
    ),
    _option("--port", "port to listen at; 0 is any free one", parse_port, default=8000),
    _option(
        "--token-file FILE",
        "file that holds the token which all requests need; by default the variable "
        "SKPATCHSVDD_TOKEN, if it is set",
    ),
    _option(
        "--allow-host NAME",
        "name by which this machine is reached without a token, as behind a proxy",
        action="append",
        default=[],
    ),
    _option("--certificate FILE", "certificate, for https"),
    _option("--key FILE", "private key of the certificate"),
    _flag("--json", "print a line of JSON for each image"),
    _option(
        "--on-alarm PROGRAM",
        "program to run at each alarm, with its arguments: all that follows, so this "
        "comes last; it gets the alarm as JSON on its standard input",
        nargs=argparse.REMAINDER,
    ),
    _option(
        "--webhook URL",
        "address to post each alarm to, as JSON; tried again until it is taken",
    ),
    _option(
        "--queue N",
        "images of requests that may wait; more are answered with 503",
        parse_count,
        default=64,
    ),
    _option("--max-megabytes MB", "largest request", parse_positive, default=32.0),
    _option(
        "--keep N",
        "images that keep their pictures, the last ones",
        parse_count,
        default=5000,
    ),
    *_RUN,
)
_DEMO = (
    _option("--output", "picture to write", default="demo.png"),
    _option("--device", "auto, cpu, cuda, ...", default="auto"),
    _SEED,
)


def _texts(help, description, epilog=None, usages=()):
    """Describe a command; `usages` are what may follow its options."""
    usage = "\n       ".join(f"%(prog)s [options] {x}" for x in usages) or None
    return {"help": help, "description": description, "epilog": epilog, "usage": usage}


COMMANDS = {
    "fit": (
        _texts(
            "learn from images of good parts and save a model",
            "Learn what is normal from images of good parts, in folders and all "
            "folders below them, and save a model.",
            "Example: skpatchsvdd fit good/ -o part.model --image-size 256",
        ),
        _FIT,
    ),
    "inspect": (
        _texts(
            "say which images are abnormal, and where",
            "Inspect images and write report.html, a page to look through them, "
            "results.csv and, for each image, a picture of what is abnormal: yellow at "
            "the threshold, red at twice as much. What cannot be inspected has a row, "
            'too, that says "unreadable" and why.',
            "Exit status: 0 if all images are normal, 3 if one is abnormal, 4 if none "
            "is but some could not be inspected, 1 if something went wrong, 130 after "
            "Ctrl-C. A watch ends by Ctrl-C, with the status of the images that it has "
            "seen. Example: skpatchsvdd inspect part.model new/ -o results",
            ("model images [images ...] -o FOLDER", "model --watch FOLDER -o FOLDER"),
        ),
        _INSPECT,
    ),
    "evaluate": (
        _texts(
            "measure a model on images whose defects are known",
            "Measure a model on a folder in MVTec AD's layout: test/good, test/DEFECT "
            "and, for figures of pixels, ground_truth/DEFECT/NAME_mask.png.",
            "Example: skpatchsvdd evaluate part.model data/part",
        ),
        _EVALUATE,
    ),
    "update": (
        _texts(
            "add more normal images, or a review, to a model, without training",
            "Add normal images that look different from those of fit, such as another "
            "batch of material, to a model, without training it again. It says how "
            "many of them look abnormal to the model as it is, and lists the worst; if "
            "there are any, it writes nothing without --yes. Former models stay as "
            "backups, MODEL.bak to MODEL.bak5, unless -o names another file. With "
            "--review it learns what people have said of the images of a report.",
            "Exit status: 0 if all is well, 3 if nothing was written because images "
            "look abnormal or a review would do harm, 1 if something went wrong. "
            "Examples: skpatchsvdd update part.model good_of_today/; skpatchsvdd "
            "update part.model --review review.json",
            ("model images [images ...]", "model --review FILE"),
        ),
        _UPDATE,
    ),
    "forget": (
        _texts(
            "take training images out of a model, without training",
            "Take images out of a model that it should not have learnt from, such as "
            "defective ones, as if they had never been among its training images; all "
            "others are scored again. They are known by their paths or, if files have "
            "moved, by their pixels; all copies of an image go. To let the model know "
            "a defect, say so in a review, see update. Former models stay as backups, "
            "as for update.",
            "Example: skpatchsvdd forget part.model good/017.png good/031.png",
        ),
        _FORGET,
    ),
    "calibrate": (
        _texts(
            "set the threshold of a model anew, by good images in a new light",
            "Set the threshold of a model by images of good parts that it was not "
            "fitted to, such as a new lot or a new light, and does not learn from: as "
            "they come, and not chosen for how abnormal they look. It says where the "
            "threshold was and will be, and how many of them raise an alarm. If they "
            "are too few for the rate of false alarms, it writes nothing without "
            "--yes. Former models stay as backups, as for update.",
            "Exit status: 0 if all is well, 3 if nothing was written because there are "
            "too few images, 1 if something went wrong. Example: skpatchsvdd calibrate "
            "part.model good_of_today/",
            ("model images [images ...]", "model --training"),
        ),
        _CALIBRATE,
    ),
    "threshold": (
        _texts(
            "set the threshold of a model by a few labelled images, or to a score",
            "Set the threshold of a model by images of good and of defective parts, so "
            "that no defective one is missed, with the fewest alarms of good ones, or "
            "by what a miss and an alarm cost; or at a score, as the slider of a "
            "report says it. Of thresholds that are as good it is the one nearest to "
            "that of the false alarm rate. It says what that means, and where labels "
            "contradict each other. The threshold stays when the model is updated, "
            "until calibrate or this command sets another. Former models stay as "
            "backups, as for update.",
            "Examples: skpatchsvdd threshold part.model --good good/ --defective bad/; "
            "skpatchsvdd threshold part.model --at=-1.5",
            (
                "model [--good FOLDER] --defective FOLDER",
                "model --at=SCORE | --false-alarm-rate FRACTION | --undo",
            ),
        ),
        _THRESHOLD,
    ),
    "export": (
        _texts(
            "write a model as an ONNX file, which needs neither torch nor this",
            "Write a model as an ONNX file, from bytes of images to score, p-value, "
            "verdict and map, for onnxruntime and others. Needs pip install onnx "
            "onnxscript.",
            "Example: skpatchsvdd export part.model -o part.onnx",
        ),
        _EXPORT,
    ),
    "serve": (
        _texts(
            "show a line live in a browser, and answer other programs",
            "Inspect what arrives in a folder, and show it live in a browser: newest "
            "images, alarms that wait until somebody looks, counts and drift. What "
            "people say there can be tried, then learnt, and undone. Other programs "
            "send images to /inspect. Needs the extra serve: starlette, uvicorn, "
            "python-multipart, prometheus_client.",
            "Examples: skpatchsvdd serve part.model --watch new/; skpatchsvdd serve "
            "station.toml",
            ("model", "station.toml", "--line NAME=MODEL:SOURCE ..."),
        ),
        _SERVE,
    ),
    "demo": (
        _texts(
            "learn from synthetic normal images and find synthetic defects",
            "Learn from synthetic normal images, find synthetic defects, print what is "
            "found and draw a picture. Takes about a minute on two cores.",
        ),
        _DEMO,
    ),
}
