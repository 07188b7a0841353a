"""The command fit."""

import math
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from skpatchsvdd._cli.files import check_layout, find_images, make_folder
from skpatchsvdd._cli.learning import (
    call_on_files,
    group_files,
    print_least_normal,
    settings_of_run,
    tell_rate,
)
from skpatchsvdd._cli.models import check_folder, check_output, find_encoder
from skpatchsvdd._cli.terminal import OK, count, print_files, printable, say_p
from skpatchsvdd._cli.values import FULL, ORIGINAL
from skpatchsvdd._images import (
    COARSE_PIXELS,
    check_image_size,
    read_display,
    read_shape,
)
from skpatchsvdd._patch_svdd import PatchSVDD
from skpatchsvdd._report import Page
from skpatchsvdd._utils import (
    SuspectsFound,
    TrainingInterrupted,
    TrainingKept,
    TwinsFound,
)

# Size of images that do not have one in common, and the most pixels that others keep:
# two cores inspect so many in seconds, and the 12 million of a camera in minutes.
_COMMON_SIZE = 256
_MOST_PIXELS = COARSE_PIXELS
# The page of the images that may be defective, and how many of them are printed.
_PAGE, _N_LISTED = "suspects.html", 10


def run(args):
    """Fit to images, save the model, and print a summary."""
    start = time.perf_counter()
    check_output(args.output)
    if args.review:
        check_folder(Path(args.review) / _PAGE)
    check_layout(args.images)
    encoder = find_encoder(args.encoder)
    files = find_images(args.images, args.strict)
    groups = {None: "auto", "none": None}.get(args.group_by, args.group_by)
    if groups not in ("auto", None):
        groups = group_files(files, groups)
    rate, max_iter = args.false_alarm_rate, args.max_iter
    est = PatchSVDD(
        image_size=_choose_size(files, args.image_size),
        false_alarm_rate="auto" if rate is None else rate,
        max_iter="auto" if max_iter is None else max_iter,
        bank_size=args.bank_size,
        contamination=args.contamination,
        encoder=encoder,
        device=args.device or "auto",
        random_state=args.random_state,
        # Half of white: a JPEG is neither quite black nor quite white.
        roi=args.roi and read_display(args.roi).max(axis=2) > 127,
        verbose=1,
    )
    print(f"learning from {count(len(files), 'image')}: seconds, more for large images")
    _fit_or_end(est, files, groups, args.output)
    est.set_params(device="auto", verbose=0)  # this run's, not the model's
    est.save(args.output)
    n_images = count(len(est.training_files_), "image")
    print(f"\nlearnt from {n_images} in {time.perf_counter() - start:.0f} s")
    _print_summary(est)
    print(f"wrote {args.output}")
    if len(est.suspects_.files):
        tell_suspects(est.suspects_, args.output, args.review)
    if args.review:
        with settings_of_run(est, args.device):
            _write_suspects(est, args.output, args.review)
    return OK


def _choose_size(files, given):
    """Return the size that images are resized to, or None to leave them as they are."""
    if given == FULL:
        return FULL
    if given not in (None, ORIGINAL):
        return check_image_size(given)
    sizes = Counter(read_shape(file)[:2] for file in files)
    if len(sizes) == 1:
        (size,) = sizes
        return None if given == ORIGINAL else _limit_size(size)
    if given == ORIGINAL:
        raise ValueError(
            f"--image-size original needs images of one size, and these have "
            f"{len(sizes)}. Pass the size that all of them are to be resized to."
        )
    print(
        f"images have {len(sizes)} sizes: all are resized to {_COMMON_SIZE} x "
        f"{_COMMON_SIZE}. Pass --image-size for another one."
    )
    return _COMMON_SIZE, _COMMON_SIZE


def _limit_size(size):
    """Return the size that large images are resized to, or None for others."""
    ratio = math.sqrt(_MOST_PIXELS / math.prod(size))
    if ratio >= 1:
        return None
    height, width = (max(round(ratio * x), 1) for x in size)
    print(
        f"images of {size[0]} x {size[1]} pixels are resized to {height} x {width}, so "
        "that each takes seconds. For defects too small for that, --image-size full "
        "looks at full resolution, too, and says how long that takes."
    )
    return height, width


def _fit_or_end(est, files, groups, output):
    """Fit; an interrupt ends it, also in training, after which `fit` would go on."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingInterrupted)
        # What is kept in memory is of no use to a command that ends.
        warnings.simplefilter("ignore", TrainingKept)
        for category in (TwinsFound, SuspectsFound):  # the summary names their files
            warnings.simplefilter("ignore", category)
        try:
            est.fit(files, None, groups)
        except (KeyboardInterrupt, TrainingInterrupted) as error:
            kept = f", {output} is as it was" if Path(output).exists() else ""
            raise KeyboardInterrupt(f"nothing was written{kept}") from error


def _print_summary(est):
    files = est.training_files_
    height, width, _ = est.inspected_shape_
    kept = zip(est.patch_sizes_, est.bank_size_.values(), strict=True)
    patches = ", ".join(f"{n:,} of {k} x {k}" for k, n in kept)
    n_alarms = int(np.sum(est.training_scores_ < est.offset_))
    print(f"inspected at {height} x {width} pixels; patches kept: {patches}")
    if est.n_iter_:
        print(f"{est.n_iter_} training steps, lambda {est.lam_:g}")
    else:
        is_auto = isinstance(est.encoder, str) and est.encoder == "auto"
        more = ": without --max-iter 0 an embedding is" if is_auto else ""
        print(f"nothing was trained{more}")
    print(
        f"an image is abnormal below a score of {est.offset_:.4g}; "
        f"{n_alarms} of the images learnt from would be"
    )
    tell_rate(est)
    if est.twins_ is not None:
        _tell_twins(est.twins_, files)
    print("the least normal of them, to look at before you trust the others:")
    print_least_normal(est.training_scores_, files)


def _tell_twins(twins, files):
    """List the images that look like several pictures of one piece."""
    files, sizes = np.array(files), np.bincount(twins)
    pieces = [files[twins == x] for x in np.flatnonzero(sizes > 1)]
    print_files(
        f"{sum(map(len, pieces))} of the images look like several pictures of one "
        "piece: each is scored without the others of its piece, and all of a piece "
        "count as one:",
        [", ".join(piece) for piece in pieces],
    )
    print(
        "pass --group-by folder or name to say which belong together, or none if each "
        "shows a piece of its own"
    )


def tell_suspects(suspects, model, folder):
    """List images that look defective, the least plausible ones first."""
    n_aside = int(suspects.is_set_aside.sum())
    print(
        f"{count(len(suspects.files), 'image')} may be defective, or unlike all "
        f"others, of which {n_aside} were set aside and not learnt from; with p-values:"
    )
    rows = list(zip(*suspects[1:], strict=True))
    for p_value, is_set_aside, file in rows[:_N_LISTED]:
        done = "set aside" if is_set_aside else "learnt"
        print(f"  {say_p(p_value):>7}  {done:9}  {printable(file)}")
    if len(rows) > _N_LISTED:
        print(f"  and {len(rows) - _N_LISTED} more")
    if folder is None:
        print(
            "look at them: --review FOLDER writes a page on which to say what they "
            f"are, skpatchsvdd forget {printable(model)} takes out what is defective"
        )


def _write_suspects(est, model, folder):
    """Write a page of the images that look defective, with outlines in all of them."""
    suspects, offset = est.suspects_, est.offset_
    if not suspects.files:
        print(f"no image looks defective: there is no {_PAGE}")
        return
    scores = call_on_files(est.score_samples, suspects.files, "scoring images")
    est.offset_ = max(offset, float(np.nextafter(scores.max(), np.inf)))
    title = f"Images for {model} that may be defective"
    page = Page(est, title, None, offset, str(model), tells_drift=False)
    for file, p_value, is_set_aside in zip(
        suspects.files, suspects.p_values, suspects.is_set_aside, strict=True
    ):
        done = "set aside" if is_set_aside else "learnt from"
        described = page.describe([file], est.inspect([file], explain=True))
        described[0]["note"] = f"{done}, p-value {say_p(p_value)}"
        page.keep(described)
    est.offset_ = offset
    path = make_folder(folder) / _PAGE
    page.write(path)
    print(
        f"open {printable(path)} in a browser, say which images are really defective, "
        "and save the review, which skpatchsvdd update learns"
    )
