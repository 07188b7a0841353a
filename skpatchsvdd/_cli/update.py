"""The command update."""

import os
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.files import find_images
from skpatchsvdd._cli.learning import (
    call_on_files,
    check_group,
    check_layout,
    print_least_normal,
)
from skpatchsvdd._cli.models import (
    back_up,
    check_exists,
    check_output,
    load_model,
    save_model,
)
from skpatchsvdd._cli.review import learn_review
from skpatchsvdd._cli.status import ABNORMAL, OK
from skpatchsvdd._utils import hold_lock


def run(args):
    """Let images or a review join a model, and save it unless that is in doubt."""
    check_exists(args.model)
    _check_sources(args)
    learn = learn_review if args.review else _learn
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


def _check_sources(args):
    """Raise unless there are either images or a review to learn from."""
    if args.review and args.images:
        raise ValueError("pass images, or --review, which names its own, not both.")
    if args.folder and not args.review:
        raise ValueError(
            "--images says where the images of --review are. Pass other images without "
            "it."
        )
    if not args.review:
        check_layout(args.images)


def _learn(args):
    """Let images join a model, in memory, and say what that changes.

    Returns
    -------
    est : PatchSVDD or None
        None if no image is new.
    doubt : str or None
        What to do first if the model would have called new images abnormal.
    """
    est = load_model(args.model, encoder=args.encoder)
    check_group(est, args)
    files = find_images(args.images, args.strict, est)
    groups = None if args.group is None else [args.group] * len(files)
    n_former, offset = len(est.training_scores_), est.offset_
    own = {"device": est.device, "verbose": est.verbose}
    est.set_params(device=args.device or est.device, verbose=1)
    scores = call_on_files(est.score_samples, files, "scoring images")
    scores = dict(zip(map(os.path.abspath, files), scores, strict=True))
    est.partial_fit(files, groups=groups).set_params(**own)  # not those of this run
    joined = est.training_files_[n_former:]
    print(f"\n{len(joined)} of {len(files)} images are new; the others were known")
    if not joined:
        return None, None
    n_abnormal = _tell_abnormal(np.array([scores[x] for x in joined]), joined, offset)
    print(
        f"an image is abnormal below a score of {est.offset_:.4g}; it was {offset:.4g}"
    )
    doubt = "look at these images, and leave out what is defective."
    return est, doubt if n_abnormal else None


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
