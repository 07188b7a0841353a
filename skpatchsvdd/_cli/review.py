"""A review of a report, applied to a model: what it teaches, and what that changes."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from skpatchsvdd._cli.files import find_images, read_fitting
from skpatchsvdd._cli.learning import call_on_files, settings_of_run, tell_threshold
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.text import ListedError, printable
from skpatchsvdd._report import GOOD, digest_file, is_of_model, read_review

# Files that a list names, at most.
_N_NAMED = 5


class _Known(NamedTuple):
    """An image of which somebody has said what it is."""

    file: str
    is_good: bool
    kind: str | None  # the name of the kind of defect
    mask: np.ndarray | None  # (height, width), True where it is defective


def learn_review(args):
    """Let a model learn from a review, for `change_model`; say what that changes.

    Nothing is learnt unless all of the review can be.
    """
    review = read_review(args.review)
    est = load_model(args.model, encoder=args.encoder)
    if review.model is not None and not is_of_model(review.model, est):
        raise ValueError(
            f"{args.review} is a review of another model's report, not of one by "
            f"{args.model}. Pass that model, or inspect the images with this one and "
            "review its report."
        )
    known = _find_known(review, est, args)
    others = _find_others(known, est, args)
    files = [x.file for x in known] + others
    with settings_of_run(est, args.device):
        before, offset = _list_alarms(est, files), est.offset_
        is_new = teach(est, known)
        after = _list_alarms(est, files) if is_new else before
    n_worse = _tell_known(known, before[: len(known)], after[: len(known)])
    _tell_others(others, before[len(known) :], after[len(known) :], args.folder)
    tell_threshold(est, offset)
    doubt = "fewer of the reviewed images would be right." if n_worse > 0 else None
    return (est, doubt) if is_new else (None, None)


def teach(est, known):
    """Let an estimator learn what is known of some images; say if any of it is new.

    There are no groups: none of these images joins the bank.
    """
    former = est._fitted
    good = [x for x in known if x.is_good]
    named = [x for x in known if not x.is_good and x.kind is not None]
    unnamed = [x for x in known if not x.is_good and x.kind is None]

    def learn(some, y, **options):
        est.partial_fit([x.file for x in some], y, **options)

    if good:
        learn(good, [1] * len(good), corrections=True)
    if named:  # labels are names or numbers, and not both
        learn(named, [x.kind for x in named], masks=[x.mask for x in named])
    if unnamed:
        learn(unnamed, [-1] * len(unnamed), masks=[x.mask for x in unnamed])
    return est._fitted is not former  # which partial_fit replaces if anything is new


def _find_known(review, est, args):
    """Return the images of a review, all of them on the disk as they were reviewed."""
    folder = args.folder or review.folder
    if folder is None:
        raise ValueError(
            f"{args.review} does not say where its images are. Pass --images and the "
            "folder."
        )
    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}, in which the images of {args.review} "
            "should be. Pass --images and the folder where they are now."
        )
    places = {file: i for i, file in enumerate(est.training_files_)}
    known, faults = [], []
    for image in review.images:
        file = os.path.join(folder, *image.file.split("/"))
        shape, fault = read_fitting(file, est)
        if fault := fault or _find_fault(image, file, shape, est, places):
            faults.append(fault)
        else:
            mask = _make_mask(image.boxes, shape[:2])
            known.append(_Known(file, image.verdict == GOOD, image.kind, mask))
    if faults:
        head = f"{args.review} cannot be applied to the images in {folder}:"
        raise ListedError(head, faults)
    return known


def _find_fault(image, file, shape, est, places):
    """Return why what is said of an image does not hold for its file, or None."""
    if image.digest is not None and digest_file(file) != image.digest:
        return f"{file} is not the image that was reviewed: it has changed since."
    for _, _, bottom, right in image.boxes:
        if bottom > shape[0] or right > shape[1]:
            return (
                f"{file} has {shape[0]} x {shape[1]} pixels, and a box reaches to row "
                f"{bottom} and column {right}."
            )
    place = None if image.verdict == GOOD else places.get(os.path.abspath(file))
    if place is not None and est.check_training_files([place])[0] == "same":
        return (
            f"{file} was learnt as a good image, and cannot become a defective one. "
            "Fit again without it."
        )
    return None


def _make_mask(boxes, size):
    """Return a mask that is True in boxes, or None without any."""
    if not boxes:
        return None
    mask = np.zeros(size, dtype=bool)
    for top, left, bottom, right in boxes:
        mask[top:bottom, left:right] = True
    return mask


def _find_others(known, est, args):
    """Return the images of --images that are not reviewed."""
    if args.folder is None:
        return []
    reviewed = {os.path.realpath(x.file) for x in known}
    files = find_images([args.folder], args.strict, est)
    return [x for x in files if os.path.realpath(x) not in reviewed]


def _list_alarms(est, files):
    return call_on_files(est.predict, files, "inspecting images") == -1


def _tell_known(known, before, after):
    """Say how many of the reviewed images are right; return how many fewer now are."""
    is_good = np.array([x.is_good for x in known])
    n_was, n_is = np.sum(before != is_good), np.sum(after != is_good)
    print(
        f"of {len(known)} reviewed images the model was right about {n_was}, and is "
        f"now about {n_is}"
    )
    for name, part in (("good", is_good), ("defective", ~is_good)):
        if part.any():
            was, now, n_images = before[part].sum(), after[part].sum(), part.sum()
            print(f"  really {name}: {was} of {n_images} raised an alarm, {now} do now")
    wrong = np.flatnonzero(after == is_good)
    _list_files("still not right:", [known[i].file for i in wrong])
    return n_was - n_is


def _tell_others(others, before, after, folder):
    """Say what has changed for the images that nobody has reviewed."""
    if not others:
        return
    gone, new = (
        [others[i] for i in np.flatnonzero(x)]
        for x in (before & ~after, after & ~before)
    )
    print(
        f"{len(others)} other images are in {printable(folder)}: {before.sum()} raised "
        f"an alarm, {after.sum()} do now; {len(gone)} no longer, {len(new)} new"
    )
    _list_files("no alarms any more:", gone)
    _list_files("new alarms:", new)


def _list_files(head, files):
    if files:
        print(head)
    for file in files[:_N_NAMED]:
        print(f"  {printable(file)}")
    if len(files) > _N_NAMED:
        print(f"  and {len(files) - _N_NAMED} more")
