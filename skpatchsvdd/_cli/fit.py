"""The command fit."""

import math
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.encoders import find_encoder
from skpatchsvdd._cli.files import find_images
from skpatchsvdd._cli.learning import check_layout, print_least_normal
from skpatchsvdd._cli.models import check_output, save_model
from skpatchsvdd._cli.status import OK
from skpatchsvdd._cli.values import ORIGINAL
from skpatchsvdd._images import check_image_size, read_display, read_shape
from skpatchsvdd._patch_svdd import PatchSVDD
from skpatchsvdd._utils import TrainingInterrupted, TrainingKept

# Size of images that do not have one in common, and the most pixels that others keep:
# two cores inspect so many in seconds, and the 12 million of a camera in minutes.
_COMMON_SIZE = 256
_MOST_PIXELS = 576 * 768
_HALF_WHITE = 127
# Alarms of good images that most can live with, where nobody says how many.
_USUAL_RATE = 0.01
_ROUNDING, _DIGITS = 1e-9, 9
# The group of an image, by the parameter --group-by: the folder it is in, or what its
# name has before the last "_", as in "sheet7_003.png".
_GROUP_OF = {
    "folder": lambda path: path.parent,
    "name": lambda path: path.parent / (path.stem.rpartition("_")[0] or path.stem),
}


def run(args):
    """Fit to images, save the model, and print a summary."""
    start = time.perf_counter()
    check_output(args.output)
    check_layout(args.images)
    encoder = find_encoder(args.encoder)
    files = find_images(args.images, args.strict)
    groups = _group_files(files, args.group_by)
    est = PatchSVDD(
        image_size=_choose_size(files, args.image_size),
        contamination="auto" if args.contamination is None else args.contamination,
        max_iter="auto" if args.max_iter is None else args.max_iter,
        bank_size=args.bank_size,
        encoder="auto" if encoder is None else encoder,
        device=args.device or "auto",
        random_state=args.random_state,
        roi=read_roi(args.roi),
        verbose=1,
    )
    print(
        f"learning from {len(files)} images: seconds, minutes if a CPU is to train, "
        "more for large images"
    )
    _fit_or_end(est, files, groups, args.output)
    est.set_params(device="auto", verbose=0)  # this run's, not the model's
    save_model(est, args.output)
    print(f"\nlearnt from {len(files)} images in {time.perf_counter() - start:.0f} s")
    _print_summary(est, files)
    print(f"wrote {args.output}")
    return OK


def _group_files(files, by):
    """Return the group of each file, by its folder or its name, or None."""
    if by is None:
        return None
    groups = [str(_GROUP_OF[by](Path(file))) for file in files]
    n_groups = len(set(groups))
    if n_groups < 2:
        raise ValueError(
            f"--group-by {by} must give at least two groups, one to train on and one "
            f"to calibrate on, and gives {n_groups}. Pass images of more groups, or "
            "leave --group-by out."
        )
    print(f"{n_groups} groups of images, by {by}")
    return groups


def _choose_size(files, given):
    """Return the size that images are resized to, or None to leave them as they are."""
    if given not in (None, ORIGINAL):
        return check_image_size(given)
    sizes = Counter(read_shape(file)[:2] for file in files)
    if len(sizes) == 1:
        (size,) = sizes
        return None if given == ORIGINAL else _limit_size(size)
    if given == ORIGINAL:
        raise ValueError(
            f"--image-size original needs images of one size, and these have "
            f"{len(sizes)}. Pass the size that all of them are to be resized to."
        )
    print(
        f"images have {len(sizes)} sizes: all are resized to {_COMMON_SIZE} x "
        f"{_COMMON_SIZE}. Pass --image-size for another one."
    )
    return _COMMON_SIZE, _COMMON_SIZE


def _limit_size(size):
    """Return the size that large images are resized to, or None for others."""
    ratio = math.sqrt(_MOST_PIXELS / math.prod(size))
    if ratio >= 1:
        return None
    height, width = (max(round(ratio * x), 1) for x in size)
    print(
        f"images of {size[0]} x {size[1]} pixels are resized to {height} x {width}, so "
        "that each takes seconds. For defects too small for that, --image-size "
        "original keeps all pixels, and takes many minutes for each image on a CPU."
    )
    return height, width


def read_roi(file):
    """Read a mask of what to inspect, black where nothing matters, or None."""
    if file is None:
        return None
    mask = read_display(file).max(axis=2)
    return mask > _HALF_WHITE  # a JPEG is not quite black, nor quite white


def _fit_or_end(est, files, groups, output):
    """Fit; an interrupt ends it, also in training, after which `fit` would go on."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingInterrupted)
        # What is kept in memory is of no use to a command that ends.
        warnings.simplefilter("ignore", TrainingKept)
        try:
            est.fit(files, None, groups)
        except (KeyboardInterrupt, TrainingInterrupted) as error:
            kept = f", {output} is as it was" if Path(output).exists() else ""
            raise KeyboardInterrupt(f"nothing was written{kept}") from error


def _print_summary(est, files):
    height, width, _ = est.inspected_shape_
    kept = zip(est.patch_sizes_, est.bank_size_.values(), strict=True)
    patches = ", ".join(f"{n:,} of {k} x {k}" for k, n in kept)
    n_alarms = int(np.sum(est.training_scores_ < est.offset_))
    print(f"inspected at {height} x {width} pixels; patches kept: {patches}")
    if est.n_iter_:
        print(f"{est.n_iter_} training steps, lambda {est.lam_:g}")
    elif isinstance(est.encoder, str) and est.encoder == "auto":
        print("nothing was trained: --max-iter 240 trains an encoder on these images")
    else:
        print("nothing was trained")
    print(
        f"an image is abnormal below a score of {est.offset_:.4g}; "
        f"{n_alarms} of the images learnt from would be"
    )
    print(_tell_rate(est))
    print("the least normal of them, to look at before you trust the others:")
    print_least_normal(est.training_scores_, files)


def _tell_rate(est):
    """Say how many good images will raise an alarm, and what would make them fewer."""
    used = est._calibration
    # Just below the last score that raises none: a threshold lies on it, or above.
    below = np.nextafter(np.nextafter(est.offset_, -np.inf), -np.inf)
    rate = float(used.p_values(np.array([below]))[0])
    text = f"of new good images, about 1 in {round(1 / rate)} will raise an alarm"
    asked = _USUAL_RATE if est.contamination == "auto" else est.contamination
    if rate <= asked * (1 + _ROUNDING):
        return text
    owners, n_needed = used.owners, math.ceil(round(1 / asked, _DIGITS)) - 1
    # Where some are trained on, as many more calibrate as there are more of all.
    n_used, n_all = (len(np.unique(x)) for x in (owners[used.calibrates], owners))
    n_needed = math.ceil(n_needed * n_all / n_used)
    unit = "images" if est.groups_ is None else "groups of images"
    return f"{text}; for 1 in {round(1 / asked)}, learn from {n_needed:,} {unit}"
