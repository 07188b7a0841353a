"""A review of a report, applied to a model: what it teaches, and what that changes."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from skpatchsvdd._cli.files import find_images, read_fitting
from skpatchsvdd._cli.learning import (
    call_on_files,
    digest_files,
    find_set_aside,
    settings_of_run,
    tell_threshold,
)
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.terminal import ListedError, print_files, printable, say_p
from skpatchsvdd._report import GOOD, digest_file, fingerprint, read_review
from skpatchsvdd._screening import MIN_IMAGES, STRANGE, measure_plausibility


class _Reviewed(NamedTuple):
    """An image of which somebody has said what it is."""

    file: str
    is_good: bool
    kind: str | None  # the name of the kind of defect
    mask: np.ndarray | None  # (height, width), True where it is defective
    is_similar: bool = False  # whether, if it is good, so is what looks like it
    digest: str | None = None  # of its pixels
    is_learnt: bool = False  # whether it is among the training images
    was_set_aside: bool = False  # whether `fit` has taken it for defective


class Changes(NamedTuple):
    """What a review changes: which images raise an alarm, before and after."""

    est: object  # the estimator, or None if there is nothing new
    known: list  # reviewed images
    others: list  # files of others
    before: np.ndarray  # of bool, for all of these
    after: np.ndarray
    offset_before: float
    offset: float
    n_right_before: int  # of the reviewed images
    n_right: int
    wrong: list  # reviewed files that are not right yet
    gone_alarms: list  # of the others
    new_alarms: list
    suspects: list  # files called good that look defective, p-values before and after

    @property
    def doubt(self):
        """Why not to save it without being asked to, or None."""
        if self.n_right < self.n_right_before:
            return "fewer of the reviewed images would be right."
        return None


def learn_review(args):
    """Let a model learn from a review, for `change_model`; say what that changes."""
    est = load_model(args.model, encoder=args.encoder)
    others = []
    if args.folder is not None:
        others = find_images([args.folder], args.strict, est)
    with settings_of_run(est, args.device):
        changes = try_review(args.review, est, args.model, args.folder, others)
    _tell_reviewed(changes)
    _tell_others(changes, args.folder)
    tell_threshold(est, changes.offset_before)
    return (changes.est, changes.doubt) if changes.est else (None, None)


def try_review(path, est, model, folder=None, others=(), verbose=1):
    """Let an estimator learn from the file of a review; return what that changes.

    Nothing is learnt unless all of the review can be. `folder` is where the images are,
    if not where the review says; `others` are files whose changes are counted, too.
    """
    review = _read_own(path, est, model)
    known = _find_known(review, est, path, folder or review.folder)
    reviewed = {os.path.realpath(x.file) for x in known}
    others = [x for x in others if os.path.realpath(x) not in reviewed]
    files = [x.file for x in known] + others

    def look():
        scores = call_on_files(est.score_samples, files, "inspecting images", verbose)
        p_values = measure_plausibility(scores[: len(known)], est.calibration_scores_)
        return scores < est.offset_, p_values

    (before, p_before), offset = look(), est.offset_
    n_known = len(est.calibration_scores_)
    is_new = teach(est, known, before[: len(known)])
    after, p_after = look() if is_new else (before, p_before)
    n, is_good = len(known), np.array([x.is_good for x in known])
    is_strange = is_good & (p_before < STRANGE) & (n_known >= MIN_IMAGES)
    return Changes(
        est=est if is_new else None,
        known=known,
        others=others,
        before=before,
        after=after,
        offset_before=offset,
        offset=est.offset_,
        n_right_before=int(np.sum(before[:n] != is_good)),
        n_right=int(np.sum(after[:n] != is_good)),
        wrong=[files[i] for i in np.flatnonzero(after[:n] == is_good)],
        gone_alarms=[files[n + i] for i in np.flatnonzero((before & ~after)[n:])],
        new_alarms=[files[n + i] for i in np.flatnonzero((after & ~before)[n:])],
        suspects=[
            (files[i], float(p_before[i]), float(p_after[i]))
            for i in np.flatnonzero(is_strange)
        ],
    )


def _read_own(path, est, model):
    """Return the review of a report by this model, or raise."""
    review = read_review(path)
    if review.model not in (None, fingerprint(est)):
        raise ValueError(
            f"{path} is a review of another model's report, not of one by "
            f"{model}. Pass that model, or inspect the images with this one and "
            "review its report."
        )
    return review


def teach(est, reviewed, are_alarms):
    """Let an estimator learn what is said of some images; return if it is new.

    Defective ones that it has learnt from are forgotten first. Good ones that `fit` has
    set aside join as usual; others are corrections, unless they are learnt from and
    right.
    """
    former = est._fitted
    _forget([x for x in reviewed if x.is_learnt and not x.is_good], est)
    pairs = zip(reviewed, are_alarms, strict=True)
    good = [x for x, is_alarm in pairs if x.is_good and (is_alarm or not x.is_learnt)]
    aside = [x for x in good if x.was_set_aside and not x.is_learnt]
    good = [x for x in good if x.is_learnt or not x.was_set_aside]
    similar = [x for x in good if x.is_similar]
    wrong = [x for x in good if not x.is_similar]
    named = [x for x in reviewed if not x.is_good and x.kind is not None]
    unnamed = [x for x in reviewed if not x.is_good and x.kind is None]
    # The groups of what was set aside are not known.
    as_usual = False if est.groups_ is None else "similar"
    for images, y, corrections in (
        (aside, [1] * len(aside), as_usual),
        (similar, [1] * len(similar), "similar"),
        (wrong, [1] * len(wrong), True),
        (named, [x.kind for x in named], False),  # labels: names or numbers, not both
        (unnamed, [-1] * len(unnamed), False),
    ):
        if images:
            masks = None if corrections else [x.mask for x in images]
            files = [x.file for x in images]
            est.partial_fit(files, y, masks=masks, corrections=corrections)
    return est._fitted is not former  # which they replace if anything is new


def _forget(reviewed, est):
    """Let an estimator forget images, all copies of each, or say why it cannot."""
    if not reviewed:
        return
    try:
        est.forget(np.isin(est.training_digests_, [x.digest for x in reviewed]))
    except ValueError as error:
        head = "defective images that were learnt as good ones cannot be forgotten:"
        raise ListedError(head, [f"{x.file}: {error}" for x in reviewed]) from error


def _find_known(review, est, path, folder):
    """Return the images of a review, all of them on the disk as they were reviewed."""
    if folder is None:
        raise ValueError(
            f"{path} does not say where its images are. Pass --images and the folder."
        )
    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}, in which the images of {path} "
            "should be. Pass --images and the folder where they are now."
        )
    known, faults = [], []
    for image in review.images:
        file = os.path.join(folder, *image.file.split("/"))
        shape, fault = read_fitting(file, est)
        if fault := fault or _find_fault(image, file, shape):
            faults.append(fault)
        else:
            mask = _make_mask(image.boxes, shape[:2])
            is_good = image.verdict == GOOD
            known.append(_Reviewed(file, is_good, image.kind, mask, image.similar))
    if faults:
        head = f"{path} cannot be applied to the images in {folder}:"
        raise ListedError(head, faults)
    former = review.folder or folder
    paths = [os.path.join(former, *x.file.split("/")) for x in review.images]
    return _look_up(known, paths, est)


def _look_up(reviewed, paths, est):
    """Return reviewed images with what an estimator made of them, by former paths."""
    aside, learnt = find_set_aside(est), set(est.training_digests_)
    digests = digest_files([x.file for x in reviewed], est)
    return [
        x._replace(
            digest=digest,
            is_learnt=digest in learnt,
            was_set_aside=not aside.isdisjoint(map(os.path.abspath, (x.file, path))),
        )
        for x, path, digest in zip(reviewed, paths, digests, strict=True)
    ]


def _find_fault(image, file, shape):
    """Return why what is said of an image does not hold for its file, or None."""
    if image.digest is not None and digest_file(file) != image.digest:
        return f"{file} is not the image that was reviewed: it has changed since."
    for _, _, bottom, right in image.boxes:
        if bottom > shape[0] or right > shape[1]:
            return (
                f"{file} has {shape[0]} x {shape[1]} pixels, and a box reaches to row "
                f"{bottom} and column {right}."
            )
    return None


def _make_mask(boxes, size):
    """Return a mask that is True in boxes, or None without any."""
    mask = np.zeros(size, dtype=bool)
    for top, left, bottom, right in boxes:
        mask[top:bottom, left:right] = True
    return mask if boxes else None


def _tell_reviewed(changes):
    """Say how many of the reviewed images are right."""
    n_known = len(changes.known)
    print(
        f"of {n_known} reviewed images the model was right about "
        f"{changes.n_right_before}, and is now about {changes.n_right}"
    )
    before, after = changes.before[:n_known], changes.after[:n_known]
    is_good = np.array([x.is_good for x in changes.known])
    for name, part in (("good", is_good), ("defective", ~is_good)):
        if part.any():
            was, now, n_images = before[part].sum(), after[part].sum(), part.sum()
            print(f"  really {name}: {was} of {n_images} raised an alarm, {now} do now")
    if changes.est:
        gone = [x.file for x in changes.known if x.is_learnt and not x.is_good]
        print_files("not learnt from any more:", gone)
    print_files("still not right:", changes.wrong)
    for file, before, after in changes.suspects:
        print(
            f"{printable(file)} is called good and looks defective, or unlike all that "
            f"is known as normal: p-value {say_p(before)}, {say_p(after)} with the "
            "review. Look at it once more"
        )


def _tell_others(changes, folder):
    """Say what has changed for the images that nobody has reviewed."""
    if not changes.others:
        return
    n_known, gone, new = len(changes.known), changes.gone_alarms, changes.new_alarms
    was, now = changes.before[n_known:].sum(), changes.after[n_known:].sum()
    print(
        f"{len(changes.others)} other images are in {printable(folder)}: {was} raised "
        f"an alarm, {now} do now; {len(gone)} no longer, {len(new)} new"
    )
    print_files("no alarms any more:", gone)
    print_files("new alarms:", new)
