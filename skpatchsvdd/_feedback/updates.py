"""What more images, or copies of an estimator, tell a fitted one."""

from dataclasses import dataclass

import numpy as np

from skpatchsvdd._calibration import number_owners
from skpatchsvdd._feedback.defect_patches import (
    DefectiveImages,
    drop_defects,
    join_defects,
    learn_defects,
    measure_again,
    rename_defects,
)
from skpatchsvdd._feedback.feedback import Feedback
from skpatchsvdd._images import list_digests
from skpatchsvdd._scoring import NormalImages, extend_bank, score_rows


@dataclass(frozen=True)
class Update:
    """What some images tell that is not known yet."""

    normal: NormalImages  # those that the bank does not hold
    groups: np.ndarray | None  # their groups
    is_seen: np.ndarray | bool  # whether the encoder was trained on these groups
    defective: DefectiveImages  # of defects that are not known
    withdrawn: set  # digests of defective images that are now called normal
    renamed: dict  # the kinds of known defects called something else, by digest
    corrected: set  # digests of normal images that should raise no alarm any more

    def __bool__(self):
        lists = self.normal, self.defective, self.withdrawn, self.renamed
        return any(map(len, (*lists, self.corrected)))


def find_update(images, labels, groups, fitted, calibration, corrections):
    """Find out what images tell that a `FittedBank` and its `Calibration` do not know.

    `labels` say which of them are defective; the groups of these do not matter.
    `corrections` says whether normal images were chosen for their scores; "similar"
    ones join the bank, and do not calibrate.
    """
    feedback = fitted.feedback or Feedback()
    stack = images.take(labels.normal).hold()
    digests = list_digests(stack)
    first = {digest: i for i, digest in reversed(list(enumerate(digests)))}
    in_bank = set(fitted.known)
    new = sorted(i for digest, i in first.items() if digest not in in_bank)
    corrected = set(digests) - feedback.corrected if corrections else set()
    if corrections is True:  # none of these joins the bank
        new = []
    owners, is_seen = fitted.owners.max() + 1 + np.arange(len(new)), bool(corrections)
    if groups is not None:
        groups = groups[labels.normal][new]
        everyone = number_owners(np.concatenate([calibration.groups, groups]))
        former, owners = np.split(everyone, [len(fitted.known)])
        was_seen = [digest in fitted.seen for digest in fitted.known]
        is_seen = np.isin(owners, former[was_seen])
    defective, former = take_defective(images, labels), feedback.kinds
    check_apart(defective, in_bank | set(digests))
    now = zip(defective.known, defective.kinds, strict=True)
    return Update(
        NormalImages(stack.take(new), [digests[i] for i in new], owners, np.arange(0)),
        groups,
        is_seen,
        defective.without(former),
        set(former) & set(digests),
        {x: kind for x, kind in now if former.get(x, kind) != kind},
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


def apply_update(fitted, calibration, update, context):
    """Return a bank and its calibration that an `Update` has joined."""
    feedback, new = fitted.feedback or Feedback(), update.normal
    fitted = fitted.change(feedback=None)
    if len(new):
        fitted = extend_bank(fitted, new, context)
        label = "scoring images, each without its own patches"
        with context.report.side_progress(label, len(new)) as progress:
            scores = context.inspect(fitted).scores_of_known(new.stack, progress)
        groups = update.groups
        if calibration.groups is not None and groups is None:
            groups = _make_groups(calibration.groups, new.known)
        calibration = calibration.extend(scores, groups, update.is_seen)
    defects = drop_defects(feedback.defects, update.withdrawn)
    defects = rename_defects(defects, update.renamed)
    if len(update.defective):
        defects = learn_defects(defects, update.defective, fitted, context)
    elif defects is not None and (len(new) or update.withdrawn):
        defects = measure_again(defects, fitted.indexes, context)
    # What was called good, and is defective.
    corrected = feedback.corrected.difference(update.defective.known)
    feedback = Feedback(defects=defects, corrected=corrected | update.corrected)
    return apply_feedback(fitted, calibration, feedback, context)


def _make_groups(former, digests):
    """Return a new group for each image, which has none of its own."""
    if former.dtype.kind in "iu":
        return former.max() + 1 + np.arange(len(digests))
    return np.array([f"image {digest}" for digest in digests])


def apply_feedback(fitted, calibration, feedback, context):
    """Return a bank with some feedback, and the calibration that goes with it.

    Given the bank without any, and the calibration of its plain scores.
    """
    raised = None
    if feedback.defects is not None:
        unsettled = fitted.change(feedback=feedback.change(levels=calibration.levels))
        raised = _raise_scores(calibration.plain, unsettled, context)
    calibration = calibration.change(raised=raised)
    if not feedback:
        return fitted, calibration
    feedback = feedback.change(levels=calibration.levels)
    return fitted.change(feedback=feedback), calibration


def _raise_scores(plain, fitted, context):
    """Return training images' scores by what is known of defects, at most `plain`.

    Images all of whose patches the bank holds are scored by these, each without its own
    ones, and their plain scores change as much as that of the patches does. Of others
    no more is known than by how much the patches that the bank has kept are raised at
    most: their scores are lowered by that, so that thresholds stay on the safe side.
    """
    inspector = context.inspect(fitted)
    abnormal, raised = score_rows(fitted, inspector, context.report)
    # Where patches give the plain scores, what they give is raised to the last bit.
    is_same = np.isclose(-abnormal, plain, rtol=1e-5)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(abnormal > 0, raised / abnormal, 1.0)
    factors = np.where(np.isnan(abnormal), _bound_raises(fitted, inspector), factors)
    scores = np.where(is_same, -raised, plain * factors)
    return np.minimum(scores, plain)


def _bound_raises(fitted, inspector):
    """Return by which factor the scores of images are raised at most, (n_images,)."""
    by_owner = fitted.feedback.defects.bound_raises(fitted.owners.max() + 1)
    raises = by_owner[:, fitted.owners]  # (n_scales, n_images)
    weights = np.array(inspector.encoder.scale_weights)[:, None]
    return (raises**weights).prod(axis=0)


def learnt_more(fitted, others):
    """Whether copies of a bank were told something that it was not."""
    own, *theirs = (x.feedback or Feedback() for x in (fitted, *others))
    return any((x.corrected, x.kinds) != (own.corrected, own.kinds) for x in theirs)


def join_feedback(former, others, joined, context):
    """Return what an estimator and copies of it were told, by their banks.

    What a copy was told after it was copied counts: a defect that one has withdrawn is
    none any more, and one that was renamed has its new name. `joined` is the bank of
    all of them.
    """
    own, *theirs = (x.feedback or Feedback() for x in (former, *others))
    before, now = own.kinds, [x.kinds for x in theirs]
    withdrawn = {x for x in before for names in now if x not in names}
    renamed = {}
    for names in now:
        for digest, kind in names.items():
            if kind == before.get(digest):
                continue
            if renamed.setdefault(digest, kind) != kind:
                raise ValueError(
                    "others disagree about a defect: it is called "
                    f"{renamed[digest]!r} by one and {kind!r} by another. Let one of "
                    "them partial_fit it again, with the name that is right."
                )
    everyone = [drop_defects(x.defects, withdrawn) for x in (own, *theirs)]
    defects = join_defects(everyone, joined.indexes, context)
    corrected = set().union(*(x.corrected for x in (own, *theirs)))
    if defects is not None:
        _check_agreed(defects, corrected.union(joined.known))
        defects = rename_defects(defects, renamed)
    return Feedback(defects=defects, corrected=corrected)


def _check_agreed(defects, normal):
    """Raise if an image is a defect to one, and normal to another, by its digest."""
    images = zip(defects.known, defects.kinds, defects.files, strict=True)
    for digest, kind, file in images:
        if digest in normal:
            raise ValueError(
                f"{file or 'an image'} is called {kind!r} by one of others, and normal "
                "by another. Decide which is right, and let partial_fit of the other "
                "copy begin anew without it."
            )
