"""What more images tell a fitted estimator: normal ones, corrections, and defects."""

from dataclasses import dataclass

import numpy as np

from skpatchsvdd._images import ImageStack, list_digests
from skpatchsvdd._inspection.context import NormalImages
from skpatchsvdd._inspection.corrections import learn_harmless
from skpatchsvdd._inspection.defect_patches import (
    DefectiveImages,
    drop_defects,
    learn_defects,
    measure_again,
    rename_defects,
)
from skpatchsvdd._inspection.fitted import drop_rows, extend_bank
from skpatchsvdd._inspection.rescoring import rescore_cautiously


@dataclass(frozen=True)
class News:
    """What some images tell that is not known yet.

    Attributes
    ----------
    normal : NormalImages
        Normal images that the bank does not hold.
    groups : ndarray of shape (n_normal,) or None
        Their groups.
    defective : DefectiveImages
        Images of defects that are not known.
    withdrawn : set of bytes
        Digests of images that were known as defective, and are now called normal.
    renamed : dict of str
        By digest, the kinds of known defects that are now called something else.
    corrected : set of bytes
        Digests of normal images that should raise no alarm any more, known or not.
    silenced : ImageStack
        These images.
    are_corrections : bool
        Whether the normal images were chosen for their scores.
    """

    normal: NormalImages
    groups: np.ndarray | None
    defective: DefectiveImages
    withdrawn: set
    renamed: dict
    corrected: set
    silenced: ImageStack
    are_corrections: bool

    def __bool__(self):
        lists = self.normal, self.defective, self.withdrawn, self.renamed
        lengths = map(len, lists)
        return any(lengths) or len(self.corrected) > 0


def find_news(images, told, groups, fitted, calibration, are_corrections):
    """Find out what some images tell that is not known yet.

    Parameters
    ----------
    images : ImageStack
        The images.
    told : Defects
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
    news : News
    """
    stack = images.take(told.normal).hold()
    digests = list_digests(stack)
    first = {digest: i for i, digest in reversed(list(enumerate(digests)))}
    in_bank = set(fitted.known)
    new = sorted(i for digest, i in first.items() if digest not in in_bank)
    if calibration.groups is not None:
        groups = groups[told.normal][new] if new else calibration.groups[:0]
    owners = calibration.owners_with(len(new), groups)[len(fitted.known) :]
    known = [digests[i] for i in new]
    defective = take_defective(images, told)
    check_apart(defective, in_bank | set(digests))
    former = {}
    if fitted.defects is not None:
        former = dict(zip(fitted.defects.known, fitted.defects.kinds, strict=True))
    now = zip(defective.known, defective.kinds, strict=True)
    renamed = {x: kind for x, kind in now if former.get(x, kind) != kind}
    corrected = set(digests) - fitted.corrected if are_corrections else set()
    return News(
        NormalImages(stack.take(new), known, owners, np.arange(0)),
        groups,
        defective.without(former),
        set(former) & set(digests),
        renamed,
        corrected,
        stack.take(sorted(first[x] for x in corrected)),
        are_corrections,
    )


def take_defective(images, told):
    """Return those of some images that are defective, as `DefectiveImages`."""
    stack = images.take(told.defective).hold()
    kinds, masks = ([x[i] for i in told.defective] for x in (told.kinds, told.masks))
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


def grow(fitted, calibration, news, contamination, inspect, context):
    """Let news join what is known.

    Parameters
    ----------
    fitted : FittedBank
    calibration : Calibration
        What is known.
    news : News
        What joins it.
    contamination : "auto" or float
        What the threshold is chosen by.
    inspect : callable
        ``inspect(fitted)`` gives an `Inspector` of a `FittedBank`.
    context : FitContext
        How to do it.

    Returns
    -------
    fitted : FittedBank
    calibration : Calibration
    """
    was_known = fitted.defects is not None
    harmless, places = fitted.harmless, None
    if news.corrected:
        label = "learning false alarms"
        with context.report.side_progress(label, len(news.silenced)) as progress:
            harmless, cells = learn_harmless(
                harmless,
                news.silenced,
                inspect(fitted),
                calibration.used_scores,
                progress,
            )
        places = _place_cells(cells, news, fitted)
    kept = drop_defects(fitted.defects, news.withdrawn)
    kept = rename_defects(kept, news.renamed)
    fitted = fitted.change(defects=kept)
    if len(news.normal):
        encoder = inspect(fitted).encoder
        fitted = extend_bank(fitted, news.normal, encoder, context, places)
    elif places is not None:
        fitted = drop_rows(fitted, places, context)
    if len(news.defective):
        found = learn_defects(kept, news.defective, inspect(fitted), context)
        fitted = fitted.change(defects=found)
    elif kept is not None:
        kept = measure_again(kept, fitted.indexes, context)
        fitted = fitted.change(defects=kept)
    scores = np.zeros(0)
    if len(news.normal):
        inspector = inspect(fitted.change(defects=None))
        label = "scoring images, each without its own patches"
        with context.report.side_progress(label, len(news.normal)) as progress:
            scores = inspector.scores_of_known(news.normal.stack, progress)
    calibration = calibration.extend(scores, news.groups, news.are_corrections)
    if fitted.defects is not None or was_known:
        fitted, calibration = rescore_cautiously(
            fitted,
            calibration,
            contamination,
            inspect,
            context.report,
            is_plain=not was_known,
            is_raised=len(news.defective) > 0,
        )
    corrected = fitted.corrected | news.corrected
    return fitted.change(corrected=corrected, harmless=harmless), calibration


def _place_cells(cells, news, fitted):
    """Return, by scale, images of the bank and patches, (n, 2), of silenced images."""
    known = [*fitted.known, *news.normal.known]
    numbers = [known.index(digest) for digest in list_digests(news.silenced)]
    return [
        np.concatenate(
            [
                np.column_stack([np.full(len(x), number), x])
                for number, x in zip(numbers, own, strict=True)
            ]
        )
        for own in zip(*cells, strict=True)
    ]
