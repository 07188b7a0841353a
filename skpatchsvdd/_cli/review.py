"""A review of a report, applied to a model: what it teaches, and what that changes."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from skpatchsvdd._cli.files import find_images, read_fitting
from skpatchsvdd._cli.learning import call_on_files
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.text import ListedError, printable
from skpatchsvdd._report import (
    DEFECTIVE,
    GOOD,
    digest_file,
    is_of_model,
    read_review,
)

# Files that a list names, at most.
_N_NAMED = 5


class _Known(NamedTuple):
    """An image of which somebody has said what it is.

    Attributes
    ----------
    file : str
        Its path.
    is_good : bool
        Whether it is good.
    kind : str or None
        The name of the kind of defect.
    mask : ndarray of bool of shape (height, width) or None
        True where it is defective, if that was said.
    """

    file: str
    is_good: bool
    kind: str | None
    mask: np.ndarray | None


def learn_review(args):
    """Let a model learn from a review, in memory, and say what that changes.

    Nothing is learnt unless all of the review can be.

    Returns
    -------
    est : PatchSVDD or None
        None if there is nothing new.
    doubt : str or None
        Why not to save it without being asked to.
    """
    review = read_review(args.review)
    est = load_model(args.model, encoder=args.encoder)
    _check_model(review, est, args)
    known = _find_known(review, est, args)
    others = _find_others(known, est, args)
    own = {"device": est.device, "verbose": est.verbose}
    est.set_params(device=args.device or est.device, verbose=1)
    files = [x.file for x in known] + others
    before, offset = _list_alarms(est, files), est.offset_
    is_new = teach(est, known)
    after = _list_alarms(est, files) if is_new else before
    est.set_params(**own)  # not those of this run
    n_worse = _tell_known(known, before[: len(known)], after[: len(known)])
    _tell_others(others, before[len(known) :], after[len(known) :], args.folder)
    print(
        f"an image is abnormal below a score of {est.offset_:.4g}; it was {offset:.4g}"
    )
    doubt = "fewer of the reviewed images would be right." if n_worse > 0 else None
    return (est, doubt) if is_new else (None, None)


def teach(est, known):
    """Let an estimator learn what is known of some images; say if any of it is new.

    Parameters
    ----------
    est : PatchSVDD
        Fitted.
    known : list of _Known
        What is known. No groups: none of these images joins the bank.
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


def _check_model(review, est, args):
    if review.model is not None and not is_of_model(review.model, est):
        raise ValueError(
            f"{args.review} is a review of another model's report, not of one by "
            f"{args.model}. Pass that model, or inspect the images with this one and "
            "review its report."
        )


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
        fault = fault or _find_fault(image, file, shape, est, places)
        if fault is None:
            is_good = image.verdict == GOOD
            mask = _make_mask(image.boxes, shape[:2])
            known.append(_Known(file, is_good, image.kind, mask))
        else:
            faults.append(fault)
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
    place = places.get(os.path.abspath(file))
    is_learnt = place is not None and est.check_training_files([place])[0] == "same"
    if image.verdict == DEFECTIVE and is_learnt:
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
    was_right, is_right = before != is_good, after != is_good
    n_was, n_is = int(was_right.sum()), int(is_right.sum())
    print(
        f"of {len(known)} reviewed images the model was right about {n_was}, and is "
        f"now about {n_is}"
    )
    for name, part in (("good", is_good), ("defective", ~is_good)):
        if part.any():
            was, now = int(before[part].sum()), int(after[part].sum())
            n_images = int(part.sum())
            print(f"  really {name}: {was} of {n_images} raised an alarm, {now} do now")
    wrong = [x.file for x, right in zip(known, is_right, strict=True) if not right]
    _list_files("still not right:", wrong)
    return n_was - n_is


def _tell_others(others, before, after, folder):
    """Say what has changed for the images that nobody has reviewed."""
    if not others:
        return
    new = [x for x, was, now in zip(others, before, after, strict=True) if now > was]
    gone = [x for x, was, now in zip(others, before, after, strict=True) if was > now]
    print(
        f"{len(others)} other images are in {printable(folder)}: {int(before.sum())} "
        f"raised an alarm, {int(after.sum())} do now; {len(gone)} no longer, "
        f"{len(new)} new"
    )
    _list_files("no alarms any more:", gone)
    _list_files("new alarms:", new)


def _list_files(head, files):
    if not files:
        return
    print(head)
    for file in files[:_N_NAMED]:
        print(f"  {printable(file)}")
    if len(files) > _N_NAMED:
        print(f"  and {len(files) - _N_NAMED} more")
