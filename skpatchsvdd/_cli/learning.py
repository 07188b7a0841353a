"""What the commands that learn from images share."""

import math
import os
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy.stats import beta

from skpatchsvdd._cli.models import back_up, check_output, save_model
from skpatchsvdd._cli.status import ABNORMAL, OK
from skpatchsvdd._cli.text import printable
from skpatchsvdd._images import ENDINGS
from skpatchsvdd._utils import Report, hold_lock

_N_LEAST_NORMAL = 5
# Files that are scored at a time, while somebody waits.
_N_SCORED = 8
# Alarms of good images that most can live with, where nobody says how many.
_USUAL_RATE = 0.01
# The group of an image, by the parameter --group-by: the folder it is in, or what its
# name has before the last "_", as in "sheet7_003.png".
_GROUP_OF = {
    "folder": lambda path: path.parent,
    "name": lambda path: path.parent / (path.stem.rpartition("_")[0] or path.stem),
}
# Folders of a data set that is made for evaluation. Two of them tell it from others.
_DATA_SET = ("train", "test", "ground_truth")
# What folders of good and of defective images are called, in small letters.
_GOOD_NAMES = {"good", "ok", "io", "normal", "pass", "passed", "healthy", "intact"}
_DEFECTIVE_NAMES = {
    *("defective", "defectives", "defect", "defects", "bad", "ng", "nok", "nio"),
    *("not_ok", "not_good", "no_good", "anomaly", "anomalies", "anomalous", "abnormal"),
    *("broken", "damaged", "faulty", "fault", "faults", "fail", "failed", "failure"),
    *("reject", "rejects", "rejected", "scrap"),
}


def check_layout(sources):
    """Raise if folders hold a data set whose defects and masks would be learnt."""
    _check_sources(sources)
    for source in sources:
        for parent, folders, names in _walk(source):
            has_images = any(Path(x).suffix.lower() in ENDINGS for x in names)
            _check_names(Path(parent), folders, has_images)
    harm = "defective images, or masks, would be learnt as normal ones"
    check_data_set(sources, harm, ("train/good", "train", "test/good"))


def check_data_set(sources, harm, wanted):
    """Raise if folders hold a data set as a whole; name the `wanted` part, if there."""
    for source in sources:
        for parent, folders, _ in _walk(source):
            found = [x for x in _DATA_SET if x in folders]
            if len(found) > 1:
                parts = (Path(parent, x) for x in wanted)
                part = next(filter(Path.is_dir, parts), "the folders of images alone")
                raise ValueError(
                    f"{parent} holds {' and '.join(f'{x}/' for x in found)}, as MVTec "
                    f"AD's layout has them: {harm}. Pass {part} instead."
                )


def _walk(source):
    """Walk a folder and all below it, but for those that are hidden."""
    for parent, folders, names in os.walk(source):
        folders[:] = [x for x in folders if not x.startswith(".")]
        yield parent, folders, names


def _check_sources(sources):
    """Raise if folders of good and of defective images are given, as good/ bad/."""
    below = {}
    for source in sources:
        if os.path.isdir(source):
            path = Path(os.path.abspath(source))
            below.setdefault(path.parent, []).append(path.name)
    for parent, names in below.items():
        _check_names(parent, names, False)


def _check_names(parent, names, has_images):
    """Raise if, by their names, a folder of defective images is beside good ones."""
    plain = {x: re.sub(r"[\W_]+", "_", x.lower()) for x in sorted(names)}
    good = [x for x in plain if plain[x] in _GOOD_NAMES]
    defective = [x for x in plain if plain[x] in _DEFECTIVE_NAMES]
    if defective and (good or has_images):
        beside = f"{good[0]}/" if good else "images"
        passed = parent / good[0] if good else "a folder of the good ones"
        raise ValueError(
            f"{parent} holds {beside} and {defective[0]}/: defective images would be "
            f"learnt as normal ones. Pass {passed} alone instead."
        )


def call_on_files(method, files, label, verbose=1):
    """Return what a method of an estimator returns of files; say how many are done."""
    results = []
    with Report("PatchSVDD", verbose).side_progress(label, len(files)) as progress:
        for start in range(0, len(files), _N_SCORED):
            results.append(method(files[start : start + _N_SCORED]))
            progress(min(start + _N_SCORED, len(files)))
    return np.concatenate(results)


def change_model(args, learn):
    """Learn, in memory, and save the model as a whole unless that is in doubt.

    ``learn(args)`` gives the model, or None if nothing is new, and why not to save it
    without being asked to, or None; it says what changes. `args` has `model`, `output`,
    `yes` and `dry_run`. Returns the command's status.
    """
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
            return OK
        if doubt and not args.yes:
            print(f"nothing was written: {doubt} Pass --yes to write nevertheless.")
            return ABNORMAL
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
    save_model(est, target)
    print(f"wrote {target}")


@contextmanager
def settings_of_run(est, device):
    """Let an estimator say how far it is, on a device or its own; then be as it was."""
    own = {"device": est.device, "verbose": est.verbose}
    est.set_params(device=device or est.device, verbose=1)
    yield
    est.set_params(**own)


def group_files(files, by):
    """Return the group of each file, by its folder or its name."""
    groups = [str(_GROUP_OF[by](Path(file))) for file in files]
    n_groups = len(set(groups))
    if n_groups < 2:
        raise ValueError(
            f"--group-by {by} must give at least two groups, and gives {n_groups}. "
            "Pass images of more groups, or leave --group-by out."
        )
    print(f"{n_groups} groups of images, by {by}")
    return groups


def check_group(est, args):
    """Raise if a model wants to know of which group images are, and nobody says."""
    if est.groups_ is not None and args.group is None:
        raise ValueError(
            f"{args.model} was fitted with groups of images that belong together. Pass "
            "--group and the name of the group, such as a lot, that these are of."
        )


def print_least_normal(scores, files):
    """List the images with the lowest scores, the lowest first."""
    for i in np.argsort(scores)[:_N_LEAST_NORMAL]:
        print(f"  {scores[i]:12.4g}  {printable(files[i])}")


def tell_threshold(est, former):
    """Say what the threshold of an estimator is, and what it was."""
    print(
        f"an image is abnormal below a score of {est.offset_:.4g}; it was {former:.4g}"
    )


def tell_rate(est):
    """Say how many good images will raise an alarm, and what would make them fewer."""
    used = est._calibration.source
    # Just below the last score that raises none: a threshold lies on it, or above.
    below = np.nextafter(np.nextafter(est.offset_, -np.inf), -np.inf)
    rate = float(used.p_values(np.array([below]))[0])
    n_used, n_all = (
        len(np.unique(x)) for x in (used.owners[used.calibrates], used.owners)
    )
    text = f"of new good images, about 1 in {round(1 / rate)} will raise an alarm"
    spread = ""
    if used.groups is None:
        spread = f"\n{tell_spread(max(round(rate * (n_used + 1)), 1), n_used)}"
    asked = _USUAL_RATE if est.false_alarm_rate == "auto" else est.false_alarm_rate
    if rate <= asked * (1 + 1e-9):
        return text + spread
    # Where some are trained on, as many more calibrate as there are more of all.
    n_needed = math.ceil(count_needed(asked) * n_all / n_used)
    verb = "learn from" if used is est._calibration else "calibrate on"
    unit = "images" if used.groups is None else "groups of images"
    return f"{text}; for 1 in {round(1 / asked)}, {verb} {n_needed:,} {unit}{spread}"


def tell_spread(k, n):
    """Say how the rate of false alarms varies from model to model.

    Of a threshold at the k-th lowest of n scores of normal images it is distributed as
    Beta(k, n + 1 - k).
    """
    low, high = beta.ppf([0.05, 0.95], k, n + 1 - k)
    return (
        f"that is the mean over many models; of nine in ten that learn from {n} images "
        f"it is {low:.1%} to {high:.1%}"
    )


def count_needed(rate):
    """Return how many images must calibrate to promise a rate of false alarms."""
    return math.ceil(round(1 / rate, 9)) - 1
