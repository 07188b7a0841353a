"""What the commands that learn from images share."""

import os
import re
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.text import printable
from skpatchsvdd._images import ENDINGS
from skpatchsvdd._utils import Report

_N_LEAST_NORMAL = 5
# Files that are scored at a time, while somebody waits, and who says how many.
_N_SCORED = 8
_SPEAKER = "PatchSVDD"
# Folders of a data set that is made for evaluation. Two of them tell it from others.
_TRAIN, _TEST, _MASKS = "train", "test", "ground_truth"
_GOOD = "good"
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
        for parent, folders, names in os.walk(source):
            folders[:] = [x for x in folders if not x.startswith(".")]
            has_images = any(Path(x).suffix.lower() in ENDINGS for x in names)
            _check_names(Path(parent), folders, has_images)
            found = [x for x in (_TRAIN, _TEST, _MASKS) if x in folders]
            if len(found) > 1:
                raise ValueError(
                    f"{parent} holds {' and '.join(f'{x}/' for x in found)}, as MVTec "
                    "AD's layout has them: defective images, or masks, would be learnt "
                    f"as normal ones. Pass {_find_good(Path(parent))} instead."
                )


def _find_good(folder):
    """Return the folder of a data set that holds images to learn from."""
    candidates = folder / _TRAIN / _GOOD, folder / _TRAIN, folder / _TEST / _GOOD
    return next((x for x in candidates if x.is_dir()), "folders of good images alone")


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


def call_on_files(method, files, label):
    """Return what a method of an estimator returns of files; say how many are done."""
    results = []
    with Report(_SPEAKER, 1).side_progress(label, len(files)) as progress:
        for start in range(0, len(files), _N_SCORED):
            results.append(method(files[start : start + _N_SCORED]))
            progress(min(start + _N_SCORED, len(files)))
    return np.concatenate(results)


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
