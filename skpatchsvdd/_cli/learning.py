"""What the commands that learn share: groups, a model that changes, its threshold."""

import math
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy.stats import beta

from skpatchsvdd._cli.models import back_up, check_exists, check_output
from skpatchsvdd._cli.terminal import ABNORMAL, OK, printable
from skpatchsvdd._images import list_digests
from skpatchsvdd._utils import Report, hold_lock

_N_LEAST_NORMAL = 5
# Files that are scored at a time, while somebody waits.
_N_SCORED = 8
# Alarms of good images that most can live with, where nobody says how many.
_USUAL_RATE = 0.01


def group_files(files, by):
    """Return the group of each file: its folder, or what its name has before a "_"."""
    paths = [*map(Path, files)]
    groups = [str(x.parent) for x in paths]
    if by == "name":
        stems = (x.stem.rpartition("_")[0] or x.stem for x in paths)
        groups = list(map(os.path.join, groups, stems))
    n_groups = len(set(groups))
    if n_groups < 2:
        raise ValueError(
            f"--group-by {by} must give at least two groups, and gives {n_groups}. "
            "Pass images of more groups, or leave --group-by out."
        )
    print(f"{n_groups} groups of images, by {by}")
    return groups


def call_on_files(method, files, label, verbose=1):
    """Return what a method of an estimator returns of files; say how many are done."""
    results = []
    with Report("PatchSVDD", verbose).side_progress(label, len(files)) as progress:
        for start in range(0, len(files), _N_SCORED):
            results.append(method(files[start : start + _N_SCORED]))
            progress(min(start + _N_SCORED, len(files)))
    return np.concatenate(results)


def digest_files(files, est):
    """Return text by which images are known again, as in `training_digests_`."""
    if not files:
        return []
    return [digest.hex() for digest in list_digests(est._check_any_images(files))]


def find_set_aside(est):
    """Return the files of the images that `fit` has set aside, as a set."""
    suspects = est.suspects_
    return {suspects.files[i] for i in np.flatnonzero(suspects.is_set_aside)} - {None}


def change_model(args, learn):
    """Learn, in memory, and save the model as a whole unless that is in doubt.

    ``learn(args)`` prints what changes. It returns the model, or None if nothing is
    new, and the reason to save it only with --yes, or None.
    """
    check_exists(args.model)
    if args.dry_run:
        _, doubt = learn(args)
        if doubt:
            print(f"it would be written with --yes only: {doubt}")
        print("nothing was written: --dry-run")
        return ABNORMAL if doubt else OK
    target = Path(args.output or args.model)
    check_output(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(target):
        before = os.stat(args.model)
        est, doubt = learn(args)
        if est is None:
            print("nothing was written: there is nothing new")
        elif doubt and not args.yes:
            print(f"nothing was written: {doubt} Pass --yes to write nevertheless.")
            return ABNORMAL
        else:
            _save(est, args.model, target, before)
    return OK


def _save(est, model, target, before):
    """Replace a model, of which a backup stays, or write another file."""
    if target.exists() and os.path.samefile(model, target):
        now = os.stat(model)
        if (now.st_ino, now.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
            raise OSError(
                f"{model} has been replaced while images joined or calibrated what it "
                "was. Nothing was written: run the command again."
            )
        print(f"the former model is {back_up(target)}")
    est.save(target)
    print(f"wrote {target}")


@contextmanager
def settings_of_run(est, device):
    """Let an estimator say how far it is, on a device or its own; then be as it was."""
    former = {"device": est.device, "verbose": est.verbose}
    est.set_params(device=device or est.device, verbose=1)
    yield
    est.set_params(**former)


def print_least_normal(scores, files):
    """List the images with the lowest scores, the lowest first."""
    for i in np.argsort(scores)[:_N_LEAST_NORMAL]:
        print(f"  {scores[i]:12.4g}  {printable(files[i])}")


def tell_threshold(est, former):
    """Say what the threshold of an estimator is, and what it was."""
    threshold = f"an image is abnormal below a score of {est.offset_:.4g}"
    print(f"{threshold}; it was {former:.4g}")


def tell_rate(est):
    """Say how many good images will raise an alarm, and what would make them fewer."""
    used = est._calibration.source
    rate = used.alarm_rate(est.offset_)
    n_used = len(np.unique(used.owners[used.calibrates]))
    text = f"of new good images, about 1 in {round(1 / rate)} will raise an alarm"
    if est.fixed_threshold_ is not None:
        low, high = used.alarm_range(est.offset_)
        found = f"{low:.1%} to {high:.1%} will (95%, binomial)"
        print(f"{text}; by the {n_used:,} that calibrate, {found}")
        return
    asked = _USUAL_RATE if est.false_alarm_rate == "auto" else est.false_alarm_rate
    if rate > asked * (1 + 1e-9):
        # Where some are trained on, as many more calibrate as there are more of all.
        n_all = len(np.unique(used.owners))
        n_needed = math.ceil(count_needed(asked) * n_all / n_used)
        verb = "learn from" if used is est._calibration else "calibrate on"
        unit = "images" if used.groups is None else "groups of images"
        text += f"; for 1 in {round(1 / asked)}, {verb} {n_needed:,} {unit}"
    print(text)
    if used.groups is None:
        print(describe_spread(max(round(rate * (n_used + 1)), 1), n_used))


def describe_spread(k, n):
    """Return how the rate of false alarms varies from model to model."""
    # That of a threshold at the k-th lowest of n scores of normal images.
    low, high = beta.ppf([0.05, 0.95], k, n + 1 - k)
    return (
        f"that is the mean over many models; of nine in ten that learn from {n} images "
        f"it is {low:.1%} to {high:.1%}"
    )


def count_needed(rate):
    """Return how many images must calibrate to promise a rate of false alarms."""
    return math.ceil(round(1 / rate, 9)) - 1
