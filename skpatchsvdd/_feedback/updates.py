"""What more images tell a fitted estimator: normal ones, corrections, and defects."""

from dataclasses import dataclass

import numpy as np

from skpatchsvdd._calibration import number_owners
from skpatchsvdd._feedback.defect_patches import (
    DefectiveImages,
    drop_defects,
    learn_defects,
    measure_again,
    rename_defects,
)
from skpatchsvdd._feedback.feedback import Feedback
from skpatchsvdd._feedback.raises import raise_scores
from skpatchsvdd._images import list_digests
from skpatchsvdd._scoring import NormalImages, extend_bank


@dataclass(frozen=True)
class Update:
    """What some images tell that is not known yet.

    Attributes
    ----------
    normal : NormalImages
        Normal images that the bank does not hold.
    groups : ndarray of shape (n_normal,) or None
        Their groups.
    is_seen : bool or ndarray of bool of shape (n_normal,)
        Whether the encoder was trained on images of their groups.
    defective : DefectiveImages
        Images of defects that are not known.
    withdrawn : set of bytes
        Digests of images that were known as defective, and are now called normal.
    renamed : dict of str
        By digest, the kinds of known defects that are now called something else.
    corrected : set of bytes
        Digests of normal images that should raise no alarm any more.
    """

    normal: NormalImages
    groups: np.ndarray | None
    is_seen: np.ndarray | bool
    defective: DefectiveImages
    withdrawn: set
    renamed: dict
    corrected: set

    def __bool__(self):
        lists = self.normal, self.defective, self.withdrawn, self.renamed
        return any(map(len, lists)) or len(self.corrected) > 0


def find_update(images, labels, groups, fitted, calibration, are_corrections):
    """Find out what some images tell that is not known yet.

    Parameters
    ----------
    images : ImageStack
        The images.
    labels : Defects
        Which of them are defective.
    groups : ndarray of shape (n_images,) or None
        The group of each image; those of defective ones do not matter.
    fitted : FittedBank
        What is known.
    calibration : Calibration
        Of the images that it is known from.
    are_corrections : bool
        Whether normal images were chosen for their scores.

    Returns
    -------
    update : Update
    """
    feedback = fitted.feedback or Feedback()
    stack = images.take(labels.normal).hold()
    digests = list_digests(stack)
    first = {digest: i for i, digest in reversed(list(enumerate(digests)))}
    in_bank = set(fitted.known)
    new = sorted(i for digest, i in first.items() if digest not in in_bank)
    corrected = set()
    if are_corrections:  # none of these joins the bank
        corrected, new = set(digests) - feedback.corrected, []
    owners, is_seen = fitted.owners.max() + 1 + np.arange(len(new)), False
    if groups is not None:
        groups = groups[labels.normal][new]
        everyone = number_owners(np.concatenate([calibration.groups, groups]))
        former, owners = np.split(everyone, [len(fitted.known)])
        was_seen = [digest in fitted.seen for digest in fitted.known]
        is_seen = np.isin(owners, former[was_seen])
    defective = take_defective(images, labels)
    check_apart(defective, in_bank | set(digests))
    former = {}
    if feedback.defects is not None:
        former = dict(zip(feedback.defects.known, feedback.defects.kinds, strict=True))
    now = zip(defective.known, defective.kinds, strict=True)
    renamed = {x: kind for x, kind in now if former.get(x, kind) != kind}
    return Update(
        NormalImages(stack.take(new), [digests[i] for i in new], owners, np.arange(0)),
        groups,
        is_seen,
        defective.without(former),
        set(former) & set(digests),
        renamed,
        corrected,
    )


def take_defective(images, labels):
    """Return those of some images that are defective, as `DefectiveImages`."""
    stack = images.take(labels.defective).hold()
    kinds, masks = (
        [x[i] for i in labels.defective] for x in (labels.kinds, labels.masks)
    )
    return DefectiveImages(stack, list_digests(stack), kinds, masks)


def check_apart(defective, normal):
    """Raise if a defective image is known as a normal one, by its digest."""
    for i, digest in enumerate(defective.known):
        if digest in normal:
            name = defective.stack.files[i] or f"defective image {i}"
            raise ValueError(
                f"{name} is called {defective.kinds[i]!r}, but it is among the normal "
                "images that are learnt from, too, where its defect would count as "
                "normal. Call fit without it among the normal images."
            )


def apply_update(fitted, calibration, update, inspect, context):
    """Let an update join what is known.

    Parameters
    ----------
    fitted : FittedBank
    calibration : Calibration
        What is known.
    update : Update
        What joins it.
    inspect : callable
        ``inspect(fitted)`` gives an `Inspector` of a `FittedBank`.
    context : FitContext
        How to do it.

    Returns
    -------
    fitted : FittedBank
    calibration : Calibration
    """
    feedback, new = fitted.feedback or Feedback(), update.normal
    fitted = fitted.change(feedback=None)
    if len(new):
        fitted = extend_bank(fitted, new, inspect(fitted).encoder, context)
        label = "scoring images, each without its own patches"
        with context.report.side_progress(label, len(new)) as progress:
            scores = inspect(fitted).scores_of_known(new.stack, progress)
        groups = update.groups
        if calibration.groups is not None and groups is None:  # twins: each its own
            groups = calibration.groups.max() + 1 + np.arange(len(new))
        calibration = calibration.extend(scores, groups, update.is_seen)
    defects = drop_defects(feedback.defects, update.withdrawn)
    defects = rename_defects(defects, update.renamed)
    if len(update.defective):
        defects = learn_defects(defects, update.defective, inspect(fitted), context)
    elif defects is not None and (len(new) or update.withdrawn):
        defects = measure_again(defects, fitted.indexes, context)
    # What was called good, and is defective.
    corrected = feedback.corrected.difference(update.defective.known)
    feedback = Feedback(defects=defects, corrected=corrected | update.corrected)
    return apply_feedback(fitted, calibration, feedback, inspect, context.report)


def apply_feedback(fitted, calibration, feedback, inspect, report):
    """Return a bank with some feedback, and the calibration that goes with it.

    Parameters
    ----------
    fitted : FittedBank
        Without feedback.
    calibration : Calibration
        Its plain scores.
    feedback : Feedback
        What people have said.
    inspect : callable
        ``inspect(fitted)`` gives an `Inspector` of a `FittedBank`.
    report : Report
        Says how far it has come.

    Returns
    -------
    fitted : FittedBank
    calibration : Calibration
    """
    raised = None
    if feedback.defects is not None:
        unsettled = fitted.change(feedback=feedback.change(levels=calibration.levels))
        inspector = inspect(unsettled)
        raised = raise_scores(calibration.plain, unsettled, inspector, report)
    calibration = calibration.change(raised=raised)
    if not feedback:
        return fitted, calibration
    feedback = feedback.change(levels=calibration.levels)
    return fitted.change(feedback=feedback), calibration
