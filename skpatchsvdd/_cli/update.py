"""The command update."""

from skpatchsvdd._cli.files import check_output, find_images, load_model, save_model
from skpatchsvdd._cli.status import OK


def run(args):
    """Let images join a model, and save it."""
    check_output(args.output or args.model)
    est = load_model(args.model, args.device)
    if est.groups_ is not None and args.group is None:
        raise ValueError(
            f"{args.model} was fitted with groups of images that belong together. Pass "
            "--group and the name of the group, such as a lot, that these are of."
        )
    files = find_images(args.images, args.strict, est)
    groups = None if args.group is None else [args.group] * len(files)
    before = len(est.training_scores_)
    est.set_params(verbose=1).partial_fit(files, groups=groups)
    save_model(est, args.output or args.model)
    n_new = len(est.training_scores_) - before
    print(f"\n{n_new} of {len(files)} images joined; the others were known")
    print(f"an image is abnormal below a score of {est.offset_:.4g}")
    print(f"wrote {args.output or args.model}")
    return OK
