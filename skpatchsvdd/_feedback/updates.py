"""What more images, or copies of an estimator, tell a fitted one."""

import reprlib
from dataclasses import dataclass

import numpy as np
import torch

from skpatchsvdd._calibration import Calibration, check_scores, number_owners
from skpatchsvdd._feedback.defect_patches import (
    DefectiveImages,
    drop_defects,
    learn_defects,
    measure_again,
    rename_defects,
)
from skpatchsvdd._feedback.feedback import Feedback
from skpatchsvdd._feedback.known_defects import MOST_RAISED
from skpatchsvdd._images import list_digests
from skpatchsvdd._scoring import (
    NormalImages,
    encode_images,
    extend_bank,
    score_encoded,
    score_memorized,
    score_rows,
)
from skpatchsvdd._utils import warn


@dataclass(frozen=True)
class Update:
    """What some images tell that is not known yet."""

    normal: NormalImages  # those that the bank does not hold
    defective: DefectiveImages  # of defects that are not known
    withdrawn: set  # digests of defective images that are now called normal
    renamed: dict  # the kinds of known defects called something else, by digest
    corrected: set  # digests of normal images that should raise no alarm any more

    def __bool__(self):
        lists = self.normal, self.defective, self.withdrawn, self.renamed
        return any(map(len, (*lists, self.corrected)))


def find_update(images, labels, groups, fitted, calibration, corrections):
    """Find out what images tell that a `FittedBank` and its `Calibration` do not know.

    `labels` say which of them are defective; the groups of these do not matter. For
    `corrections` see `PatchSVDD.partial_fit`.
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
    owners = calibration.number_new(len(new))
    calibrates = np.full(len(new), not corrections)
    if groups is not None:
        groups = groups[labels.normal][new]
        owners = calibration.number(groups)
        was_seen = [digest in fitted.seen for digest in fitted.known]
        calibrates = ~np.isin(owners, calibration.owners[was_seen])
    known = [digests[i] for i in new]
    defective, former = take_defective(images, labels), feedback.kinds
    check_apart(defective, set(digests), fitted.known)
    now = zip(defective.known, defective.kinds, strict=True)
    return Update(
        NormalImages(stack.take(new), known, owners, np.arange(0), groups, calibrates),
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


def check_apart(defective, normal, learnt=()):
    """Raise if a defective image is among normal ones, of this call or `learnt`."""
    for i, digest in enumerate(defective.known):
        name = defective.stack.files[i] or f"defective image {i}"
        if digest in normal:
            raise ValueError(
                f"{name} is called {defective.kinds[i]!r}, but it is among the normal "
                "images that are learnt from, too, where its defect would count as "
                "normal. Call fit without it among the normal images."
            )
        if digest in learnt:
            raise ValueError(
                f"{name} is called {defective.kinds[i]!r}, but it was learnt from as a "
                "normal image, so that its defect counts as normal. Take it out "
                f"first, by forget([{learnt.index(digest)}])."
            )


def check_forgotten(indices, fitted, calibration):
    """Return which images of a bank to forget, bool, or raise."""
    n = len(fitted.known)
    way_out = "fit again without these images"
    if fitted.n_folds:
        raise ValueError(
            "forget needs a bank of all patches: this one was reduced, by bank_size or "
            f"as it was too large, to patches that stand for others. {way_out}."
        )
    if fitted.setting.center.size > 1:
        raise ValueError(
            "forget cannot take images out of the mean image that training='paper' "
            f"subtracts: {way_out}."
        )
    indices = np.asarray(indices)
    is_mask = indices.dtype == bool and indices.shape == (n,)
    if not is_mask:
        are_places = indices.ndim == 1 and (
            indices.dtype.kind in "iu" or len(indices) == 0
        )
        if not are_places or ((indices < -n) | (indices >= n)).any():
            raise ValueError(
                f"indices must be places among the {n} training images, from 0, or an "
                f"array of {n} bools, got {reprlib.repr(indices.tolist())}."
            )
    is_dropped = np.zeros(n, dtype=bool)
    is_dropped[indices if is_mask else indices.astype(int)] = True
    if (~is_dropped).sum() < 2 or not (calibration.calibrates & ~is_dropped).any():
        raise ValueError(
            f"{is_dropped.sum()} of {n} training images cannot be forgotten: at least "
            f"two must stay, and one that calibrates. Keep some, or {way_out}."
        )
    return is_dropped


def hold_out(images, groups, fitted, bank, report):
    """Return the `Calibration` of images that are not learnt from, or raise."""
    kinds = (fitted.feedback or Feedback()).kinds
    digests = list_digests(images)
    for i, digest in enumerate(digests):
        if digest in fitted.known or digest in kinds:
            is_what = "defective" if digest in kinds else "a training image"
            raise ValueError(
                f"{images.files[i] or f'image {i} of X'} is known as {is_what}, and "
                "tells nothing of new normal images. Leave it out."
            )
    with report.side_progress("scoring images", len(images)) as progress:
        abnormal, encoded = encode_images(images, digests, bank, progress)
    plain, raised = -abnormal
    check_scores(plain)
    return Calibration(
        plain=plain,
        calibrates=np.ones(len(images), dtype=bool),
        owners=number_owners([None] * len(images) if groups is None else groups),
        groups=groups,
        raised=raised if kinds else None,
        images=encoded,
    )


def add_defects(defective, fitted, calibration, context):
    """Return a new bank and its calibration that `DefectiveImages` have joined."""
    feedback = Feedback(defects=learn_defects(None, defective, fitted, context))
    return apply_feedback(fitted, fitted, calibration, feedback, context)


def apply_update(fitted, calibration, update, context):
    """Return a bank and its calibration that an `Update` has joined."""
    feedback, new = fitted.feedback or Feedback(), update.normal
    former = fitted = fitted.change(feedback=None)
    if len(new):
        fitted = extend_bank(fitted, new, context)
        label = "scoring images, each without its own patches"
        with context.report.side_progress(label, len(new)) as progress:
            scores = score_memorized(new.stack, context.load(fitted), progress)
        calibration = calibration.extend(scores, new.owners, new.calibrates, new.groups)
    defects = drop_defects(feedback.defects, update.withdrawn)
    defects = rename_defects(defects, update.renamed)
    if len(update.defective):
        defects = learn_defects(defects, update.defective, fitted, context)
    elif defects is not None and (len(new) or update.withdrawn):
        defects = measure_again(defects, fitted, context)
    # What was called good, and is defective.
    corrected = feedback.corrected.difference(update.defective.known)
    feedback = Feedback(defects=defects, corrected=corrected | update.corrected)
    calibration = _drop_held_out(calibration, update.defective.known)
    return apply_feedback(former, fitted, calibration, feedback, context)


def _drop_held_out(calibration, defective):
    """Return a calibration without those of its images that are defective."""
    held_out = calibration.held_out
    if held_out is None:
        return calibration
    stays = [i for i, x in enumerate(held_out.images.known) if x not in set(defective)]
    if len(stays) == len(held_out):
        return calibration
    return calibration.change(held_out=held_out.take(stays) if stays else None)


def keep_feedback(former, fitted, calibration, context):
    """Return a bank and its calibration with the feedback that a former one has."""
    feedback, former = former.feedback or Feedback(), former.change(feedback=None)
    if feedback.defects is not None:
        defects = measure_again(feedback.defects, fitted, context)
        feedback = feedback.change(defects=defects)
    return apply_feedback(former, fitted, calibration, feedback, context)


def warn_of_contradictions(images, labels, scores, fitted):
    """Warn if labels contradict each other, or what was learnt before."""
    feedback, digests = fitted.feedback or Feedback(), list_digests(images)
    names = [file or f"image {i} of X" for i, file in enumerate(images.files)]
    good, defective = labels.normal, labels.defective
    known_good = {*fitted.known, *feedback.corrected}
    for chosen, opposite, what in (
        (good, {digests[i] for i in defective}, "good, and defective as well"),
        (good, set(feedback.kinds), "good, and known as defective"),
        (defective, known_good, "defective, and known as good"),
    ):
        if found := [names[i] for i in chosen if digests[i] in opposite]:
            more = f", with {len(found) - 1} more," if len(found) > 1 else ""
            warn(f"{found[0]}{more} is labelled {what}. Correct what is wrong.")
    best = defective[scores[defective].argmax()]
    above = good[scores[good] <= scores[best]]
    if len(above):
        worst = above[scores[above].argmin()]
        warn(
            f"labels contradict each other: {names[best]} is defective and scores "
            f"{scores[best]:.4g}, and {len(above)} of {len(good)} good images score no "
            f"higher, {names[worst]} only {scores[worst]:.4g}. No threshold is right "
            "about all. Look at both; if the labels are right, let the model learn "
            "from them by partial_fit."
        )


def apply_feedback(former, fitted, calibration, feedback, context):
    """Return a bank with feedback, and the calibration that goes with it.

    Takes the bank without any, and plain scores of a `former` one. Where another bank,
    or a known defect, may have changed them, all scores are found anew: of images all
    of whose patches the bank holds, and of those that calibrate from outside of it.
    """
    if fitted is former and feedback.defects is None:
        calibration = calibration.forget_raised()
    else:
        # Levels are for what comes after these scores.
        levels = np.zeros(len(fitted.known) + 1)
        asked = fitted.change(feedback=feedback.change(levels=levels))
        bank = context.load(asked)
        found = score_rows(asked, bank, context.report)
        held_out = calibration.held_out
        if held_out is not None:
            others = score_encoded(held_out.images, fitted, bank)
            most = np.full(len(held_out), MOST_RAISED)
            held_out = _score_again(held_out, *others, most, feedback)
        found = _leave_out_of_mean(found, former, fitted, calibration, context)
        if fitted is not former and fitted.n_folds:
            calibration = _follow_rows(calibration, former, fitted, context)
        most = _bound_raises(asked, bank) if feedback.defects else None
        calibration = _score_again(calibration, *found, most, feedback)
        calibration = calibration.change(held_out=held_out)
    if not feedback:
        return fitted, calibration
    feedback = feedback.change(levels=calibration.levels)
    return fitted.change(feedback=feedback), calibration


def _score_again(calibration, abnormal, raised, most, feedback):
    """Return a calibration with new scores, NaN for images that were not scored.

    Of these no more is known than by how much they may be raised at `most`: their
    scores are lowered by that, so that thresholds stay on the safe side.
    """
    is_found = ~np.isnan(abnormal)
    # To the last bit what it was, if nothing but a rounding has changed it.
    is_same = ~is_found | np.isclose(-abnormal, calibration.plain, rtol=1e-5)
    plain = np.where(is_same, calibration.plain, -abnormal)
    if feedback.defects is None:
        return calibration.change(plain=plain, raised=None)
    scores = np.where(is_found, -raised, plain * most)
    return calibration.change(plain=plain, raised=np.minimum(scores, plain))


def _leave_out_of_mean(found, former, fitted, calibration, context):
    """Return scores of images which the mean of images is to be without, too.

    The features in the bank are less the mean of all images. So these scores are what
    they were, times what changes with the bank for the features there.
    """
    n = fitted.n_averaged if fitted.setting.center.size > 1 else 0
    if n == 0:
        return found
    before = found[0]
    if fitted is not former:
        before = score_rows(former, context.load(former), context.report)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = -calibration.plain[:n] / before[:n]
    found[:, :n] *= np.where(before[:n] == 0, 1.0, ratio)
    return found


def _follow_rows(calibration, former, fitted, context):
    """Return a calibration whose scores change as the distances of kept rows do.

    Of images of which a reduced bank holds some patches: these are searched for in both
    banks, without the image's fold. Local normal variation changes with the distances.
    """
    n_former, logs = len(former.known), []
    for before, after in zip(former.indexes, fitted.indexes, strict=True):
        bank, changes = before.view_bank(), []
        images = bank.places[:, 0]
        for owner in np.unique(bank.owners):
            is_own = bank.owners == owner
            rows = torch.from_numpy(bank.rows[is_own])[None].to(context.device)
            left_out = owner, fitted.owners[images[is_own][0]]
            was, now = (
                index.query(rows, [int(x)])[0].clamp(min=1e-12).log()
                for index, x in zip((before, after), left_out, strict=True)
            )
            changes.append((images[is_own], (now - was).cpu().numpy()))
        images, changes = (np.concatenate(x) for x in zip(*changes, strict=True))
        counts = np.bincount(images, minlength=n_former)
        sums = np.bincount(images, changes, minlength=n_former)
        mean = sums.sum() / counts.sum()
        logs.append(np.where(counts > 0, sums / np.maximum(counts, 1), mean))
    weights = np.array(context.load(fitted).encoder.scale_weights)
    plain = calibration.plain.copy()
    plain[:n_former] *= np.exp(weights @ np.array(logs))
    return calibration.change(plain=plain)


def _bound_raises(fitted, bank):
    """Return by which factor the scores of images are raised at most, (n_images,)."""
    raises = fitted.feedback.defects.bound_raises()
    weights = np.array(bank.encoder.scale_weights)[:, None]
    return (raises**weights).prod(axis=0)
