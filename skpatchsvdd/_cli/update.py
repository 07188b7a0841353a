"""The command update."""

import os

import numpy as np

from skpatchsvdd._cli.files import check_layout, find_images
from skpatchsvdd._cli.learning import (
    call_on_files,
    change_model,
    print_least_normal,
    settings_of_run,
    tell_threshold,
)
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.review import learn_review


def run(args):
    """Let images or a review join a model, and save it unless that is in doubt."""
    if args.review and args.images:
        raise ValueError("pass images, or --review, which names its own, not both.")
    if args.folder and not args.review:
        raise ValueError(
            "--images says where the images of --review are. Pass other images without "
            "it."
        )
    if args.review:
        return change_model(args, learn_review)
    check_layout(args.images)
    return change_model(args, _learn)


def _learn(args):
    """Let images join a model, for `change_model`; say what that changes."""
    est = load_model(args.model, encoder=args.encoder)
    if est.groups_ is not None and args.group is None:
        raise ValueError(
            f"{args.model} was fitted with groups of images that belong together. Pass "
            "--group and the name of the group, such as a lot, that these are of."
        )
    files = find_images(args.images, args.strict, est)
    if est.groups_ is None and args.group is not None:
        raise ValueError(
            f"{args.model} was fitted without groups. Leave out --group, or fit with "
            "--group-by."
        )
    groups = None if args.group is None else [args.group] * len(files)
    n_former, offset = len(est.training_scores_), est.offset_
    with settings_of_run(est, args.device):
        scores = call_on_files(est.score_samples, files, "scoring images")
        est.partial_fit(files, groups=groups)
    scores = dict(zip(map(os.path.abspath, files), scores, strict=True))
    joined = est.training_files_[n_former:]
    print(f"\n{len(joined)} of {len(files)} images are new; the others were known")
    if not joined:
        return None, None
    abnormal = [x for x in joined if scores[x] < offset]
    print(f"{len(abnormal)} of them look abnormal to the model as it was")
    doubt = None
    if abnormal:
        print("the worst of them, below its threshold:")
        print_least_normal(np.array([scores[x] for x in abnormal]), abnormal)
        doubt = "look at these images, and leave out what is defective."
    tell_threshold(est, offset)
    return est, doubt
