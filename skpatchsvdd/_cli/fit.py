"""The command fit."""

import time

import numpy as np

from skpatchsvdd._cli.files import (
    check_output,
    choose_size,
    find_images,
    read_roi,
    save_model,
)
from skpatchsvdd._cli.status import OK
from skpatchsvdd._cli.text import printable
from skpatchsvdd._patch_svdd import PatchSVDD

_N_LEAST_NORMAL = 5


def run(args):
    """Fit to images, save the model, and print a summary."""
    start = time.perf_counter()
    check_output(args.output)
    files = find_images(args.images, args.strict)
    size = choose_size(files, args.image_size)
    est = PatchSVDD(
        image_size=size,
        contamination="auto" if args.contamination is None else args.contamination,
        max_iter="auto" if args.max_iter is None else args.max_iter,
        device=args.device or "auto",
        random_state=args.random_state,
        roi=read_roi(args.roi),
        verbose=1,
    )
    print(
        f"learning from {len(files)} images: seconds on a GPU, minutes on a CPU, more "
        "for large images"
    )
    est.fit(files)
    save_model(est, args.output)
    print(f"\nlearnt from {len(files)} images in {time.perf_counter() - start:.0f} s")
    _print_summary(est, files)
    print(f"wrote {args.output}")
    return OK


def _print_summary(est, files):
    height, width, _ = est.inspected_shape_
    patches = ", ".join(f"{n:,} of {k} x {k}" for k, n in est.bank_size_.items())
    n_alarms = int(np.sum(est.training_scores_ < est.offset_))
    print(f"inspected at {height} x {width} pixels; patches kept: {patches}")
    print(f"{est.n_iter_} training steps, lambda {est.lam_:g}")
    print(
        f"an image is abnormal below a score of {est.offset_:.4g}; "
        f"{n_alarms} of the images learnt from would be"
    )
    print("the least normal of them, to look at before you trust the others:")
    for i in np.argsort(est.training_scores_)[:_N_LEAST_NORMAL]:
        print(f"  {est.training_scores_[i]:12.4g}  {printable(files[i])}")
