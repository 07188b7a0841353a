"""The command update."""

import os

import numpy as np

from skpatchsvdd._cli.files import find_images
from skpatchsvdd._cli.learning import (
    call_on_files,
    change_model,
    check_group,
    check_layout,
    print_least_normal,
)
from skpatchsvdd._cli.models import check_exists, load_model
from skpatchsvdd._cli.review import learn_review


def run(args):
    """Let images or a review join a model, and save it unless that is in doubt."""
    check_exists(args.model)
    _check_sources(args)
    return change_model(args, learn_review if args.review else _learn)


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
