"""What copies of an estimator were told, as one."""

from skpatchsvdd._feedback.defect_patches import (
    drop_defects,
    join_defects,
    rename_defects,
)
from skpatchsvdd._feedback.feedback import Feedback


def learnt_more(fitted, others):
    """Whether copies of a bank were told something that it was not."""
    own = _list_all(fitted)
    return any(_list_all(other) != own for other in others)


def _list_all(fitted):
    feedback = fitted.feedback or Feedback()
    return feedback.corrected, _name_defects(feedback)


def _name_defects(feedback):
    """Return the kinds of known defects, by digest."""
    defects = feedback.defects
    if defects is None:
        return {}
    return dict(zip(defects.known, defects.kinds, strict=True))


def join_feedback(former, others, joined, context):
    """Return what an estimator and copies of it were told.

    What a copy was told after it was copied counts: a defect that one has withdrawn is
    none any more, and one that was renamed has its new name.

    Parameters
    ----------
    former : FittedBank
        What all others have grown from.
    others : list of FittedBank
        The copies.
    joined : FittedBank
        The bank of all of them.
    context : FitContext
        How to do it.

    Returns
    -------
    feedback : Feedback
    """
    own, *theirs = (x.feedback or Feedback() for x in (former, *others))
    before, now = _name_defects(own), [_name_defects(x) for x in theirs]
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
    defects = join_defects(everyone[0], everyone[1:], joined.indexes, context)
    corrected = set().union(*(x.corrected for x in (own, *theirs)))
    if defects is not None:
        _check_apart(defects, corrected.union(joined.known))
        defects = rename_defects(defects, renamed)
    return Feedback(defects=defects, corrected=corrected)


def _check_apart(defects, normal):
    """Raise if an image is a defect to one, and normal to another, by its digest."""
    for digest, kind, file in zip(
        defects.known, defects.kinds, defects.files, strict=True
    ):
        if digest in normal:
            raise ValueError(
                f"{file or 'an image'} is called {kind!r} by one of others, and normal "
                "by another. Decide which is right, and let partial_fit of the other "
                "copy begin anew without it."
            )
