"""The command update."""

import os
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.files import find_images
from skpatchsvdd._cli.learning import check_layout, print_least_normal
from skpatchsvdd._cli.models import (
    back_up,
    check_exists,
    check_output,
    load_model,
    save_model,
)
from skpatchsvdd._cli.status import ABNORMAL, OK
from skpatchsvdd._utils import hold_lock


def run(args):
    """Let images join a model, and save it unless they look abnormal to it."""
    check_exists(args.model)
    check_layout(args.images)
    if args.dry_run:
        _, n_abnormal = _learn(args)
        print("nothing was written: --dry-run")
        return ABNORMAL if n_abnormal else OK
    target = Path(args.output or args.model)
    check_output(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(target):
        before = os.stat(args.model)
        est, n_abnormal = _learn(args)
        if est is None:
            print("nothing was written: there is nothing new")
            return OK
        if n_abnormal and not args.yes:
            print(
                "nothing was written: look at these images. Leave out what is "
                "defective, or pass --yes if all of them are normal."
            )
            return ABNORMAL
        _save(est, args.model, target, before)
    return OK


def _learn(args):
    """Let images join a model, in memory, and say what that changes.

    Returns
    -------
    est : PatchSVDD or None
        None if no image is new.
    n_abnormal : int
        How many new images the model would have called abnormal.
    """
    est = load_model(args.model, encoder=args.encoder)
    if est.groups_ is not None and args.group is None:
        raise ValueError(
            f"{args.model} was fitted with groups of images that belong together. Pass "
            "--group and the name of the group, such as a lot, that these are of."
        )
    files = find_images(args.images, args.strict, est)
    groups = None if args.group is None else [args.group] * len(files)
    n_former, offset = len(est.training_scores_), est.offset_
    own = {"device": est.device, "verbose": est.verbose}
    est.set_params(device=args.device or est.device, verbose=1)
    scores = dict(
        zip(map(os.path.abspath, files), est.score_samples(files), strict=True)
    )
    est.partial_fit(files, groups=groups).set_params(**own)  # not those of this run
    joined = est.training_files_[n_former:]
    print(f"\n{len(joined)} of {len(files)} images are new; the others were known")
    if not joined:
        return None, 0
    n_abnormal = _tell_abnormal(np.array([scores[x] for x in joined]), joined, offset)
    print(
        f"an image is abnormal below a score of {est.offset_:.4g}; it was {offset:.4g}"
    )
    return est, n_abnormal


def _tell_abnormal(scores, files, offset):
    """Say how many images a model calls abnormal, and list the worst."""
    is_abnormal = scores < offset
    n_abnormal = int(is_abnormal.sum())
    print(f"{n_abnormal} of them look abnormal to the model as it was")
    if n_abnormal:
        print("the worst of them, below its threshold:")
        abnormal = np.flatnonzero(is_abnormal)
        print_least_normal(scores[abnormal], [files[i] for i in abnormal])
    return n_abnormal


def _save(est, model, target, before):
    """Replace a model, of which a backup stays, or write another file."""
    if target.exists() and os.path.samefile(model, target):
        now = os.stat(model)
        if (now.st_ino, now.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
            raise OSError(
                f"{model} has been replaced while images joined what it was. Nothing "
                "was written: run the command again."
            )
        print(f"the former model is {back_up(target)}")
    save_model(est, target)
    print(f"wrote {target}")
