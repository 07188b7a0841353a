"""What the commands that learn from images share."""

import os
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.text import printable

_N_LEAST_NORMAL = 5
# Folders of a data set that is made for evaluation. Two of them tell it from others.
_TRAIN, _TEST, _MASKS = "train", "test", "ground_truth"
_GOOD = "good"


def check_layout(sources):
    """Raise if folders hold a data set whose defects and masks would be learnt."""
    for source in sources:
        for parent, folders, _ in os.walk(source):
            folders[:] = [x for x in folders if not x.startswith(".")]
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
