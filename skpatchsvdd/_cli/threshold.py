"""The command threshold."""

import math

from skpatchsvdd._cli.files import check_layout, find_images
from skpatchsvdd._cli.learning import (
    change_model,
    settings_of_run,
    tell_rate,
    tell_threshold,
)
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.terminal import count, print_files


def run(args):
    """Set the threshold of a model, by labelled images or to a value, and save it."""
    is_given = args.undo or (args.at, args.false_alarm_rate) != (None, None)
    if args.defective is None and not is_given:
        raise ValueError(
            "pass what sets the threshold: --defective and --good with labelled "
            "images, --at with a score, --false-alarm-rate, or --undo."
        )
    if is_given and (args.good, args.miss_cost, args.alarm_cost) != (None, None, None):
        raise ValueError(
            "--good, --miss-cost and --alarm-cost go with --defective alone."
        )
    check_layout(args.good or [])
    return change_model(args, _set)


def _set(args):
    """Set the threshold of a model, for `change_model`; say what that changes."""
    est = load_model(args.model, encoder=args.encoder)
    former, offset = _describe(est), est.offset_
    if args.defective is not None:
        with settings_of_run(est, args.device):
            _tune(est, args)
    elif args.at is not None:
        est.fix_threshold(args.at)
    else:
        if args.false_alarm_rate is not None:
            est.set_params(false_alarm_rate=args.false_alarm_rate)
        est.fix_threshold(None)
    tell_threshold(est, offset)
    tell_rate(est)
    return (None if _describe(est) == former else est), None


def _describe(est):
    return est.offset_, est.fixed_threshold_, est._calibration.rate


def _tune(est, args):
    """Set the threshold by labelled images; say what it does to them."""
    good = find_images(args.good, args.strict, est) if args.good else []
    defective = find_images(args.defective, args.strict, est)
    facts = est.tune_threshold(
        [*good, *defective],
        [1] * len(good) + [-1] * len(defective),
        miss_cost=args.miss_cost or math.inf,
        alarm_cost=args.alarm_cost or 1.0,
    )
    is_alarm = facts.scores < facts.threshold
    alarms = [x for x, alarm in zip(good, is_alarm, strict=False) if alarm]
    found = is_alarm[len(good) :]
    misses = [x for x, alarm in zip(defective, found, strict=True) if not alarm]
    n_good, n_defective = count(len(good), "good image"), count(len(defective), "image")
    _tell(f"of {n_good} {len(alarms)} raise an alarm", facts.alarm_range, alarms)
    head = f"of {n_defective} with defects {len(misses)} are missed"
    _tell(head, facts.miss_range, misses)


def _tell(head, bounds, files):
    """Say how often something happens to images like some, and to which it did."""
    low, high = bounds
    print(f"{head}: {low:.1%} to {high:.1%} of such images (95%, binomial)")
    print_files("these are:", files)
