"""The command calibrate."""

import numpy as np

from skpatchsvdd._cli.files import check_layout, find_images
from skpatchsvdd._cli.learning import (
    call_on_files,
    change_model,
    count_needed,
    group_files,
    print_least_normal,
    settings_of_run,
    tell_rate,
    tell_threshold,
)
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.terminal import count


def run(args):
    """Set the threshold of a model by images, or as it was, and save it."""
    if args.training and args.images:
        raise ValueError(
            "pass images of good parts to calibrate on, or --training, which goes back "
            "to the training images, and not both."
        )
    if args.training and args.group_by is not None:
        raise ValueError("--group-by is for images, and --training takes none.")
    check_layout(args.images or [])
    return change_model(args, _go_back if args.training else _calibrate)


def _load(args):
    """Load a model, with the rate of false alarms that it is to have."""
    est = load_model(args.model, encoder=args.encoder)
    if args.false_alarm_rate is not None:
        est.set_params(false_alarm_rate=args.false_alarm_rate)
    return est


def _calibrate(args):
    """Calibrate a model on images, for `change_model`; say what that changes."""
    est = _load(args)
    files = find_images(args.images, args.strict, est)
    groups = None if args.group_by is None else group_files(files, args.group_by)
    offset = est.offset_
    with settings_of_run(est, args.device):
        before = call_on_files(est.predict, files, "inspecting images as before")
        est.calibrate(files, groups)
    doubt = _tell_enough(est, len(files), groups)
    tell_threshold(est, offset)
    tell_rate(est)
    scores, n_images = est.calibration_scores_, count(len(files), "image")
    n_before, n_alarms = np.sum(before == -1), np.sum(scores < est.offset_)
    print(f"of these {n_images} {n_before} raised an alarm, {n_alarms} will")
    print("the least normal of them; a defect here would let others like it pass:")
    print_least_normal(scores, files)
    return est, doubt


def _tell_enough(est, n_images, groups):
    """Say how many images there are, and are needed; return what is wrong, or None."""
    n_given, given, rate = n_images, count(n_images, "image"), est.false_alarm_rate
    if groups is not None:
        n_given = len(set(groups))
        given = f"{count(n_given, 'group')} of images"
    if rate == "auto":
        print(f"{given} to calibrate on")
        return None
    n_needed, rate = count_needed(rate), f"a rate of false alarms of {rate:g}"
    print(f"{given} to calibrate on; {rate} needs {n_needed:,}")
    verb = "is" if n_given == 1 else "are"
    return f"{given} {verb} too few for {rate}." if n_given < n_needed else None


def _go_back(args):
    """Take the threshold of the training images; say what that changes."""
    est = _load(args)
    former, offset = est._calibration, est.offset_
    est.calibrate(None)
    is_same = (former.rate, offset) == (est.false_alarm_rate, est.offset_)
    if is_same and former.held_out is former.fixed is None:
        return None, None
    print(f"back to {count(len(est.training_scores_), 'training image')}")
    tell_threshold(est, offset)
    tell_rate(est)
    return est, None
