"""Files inspected batch by batch, so that none takes others with it."""

from typing import NamedTuple

import numpy as np
from sklearn.utils import Bunch

from skpatchsvdd._cli.files import read_fitting
from skpatchsvdd._cli.states import find_state
from skpatchsvdd._images import ChangedFileError, ImageFileError

# Images inspected at a time, and their pixels, about: so much is done again after an
# interruption, and so many maps are in memory.
_BATCH, _BATCH_PIXELS = 16, 2**24
# What may be wrong with a file, and what may be, but is more likely elsewhere.
_OF_FILES = (OSError, ValueError)
_OF_ANY = (RuntimeError, MemoryError, ArithmeticError)


class Outcome(NamedTuple):
    """What there is to say about one file.

    Attributes
    ----------
    file : str
        Its name.
    state : int or None
        Its state before it was read; see `states.find_state`.
    reason : str or None
        Why it cannot be inspected.
    results : Bunch or None
        What `PatchSVDD.inspect` says of it alone.
    """

    file: str
    state: int | None
    reason: str | None = None
    results: Bunch | None = None


def cut_batches(files, est):
    """Yield lists of outcomes, with a reason where a file does not fit to a model."""
    batch, n_pixels = [], 0
    for file in map(str, files):
        state = find_state(file)
        shape, reason = read_fitting(file, est)
        batch.append(Outcome(file, state, reason))
        n_pixels += shape[0] * shape[1]
        if len(batch) == _BATCH or n_pixels >= _BATCH_PIXELS:
            yield batch
            batch, n_pixels = [], 0
    if batch:
        yield batch


def inspect_batch(batch, est, explain=False):
    """Return the outcomes of a batch, with results or with reasons, in its order.

    With `explain` results say what alarms were compared with; see `PatchSVDD.inspect`.
    Where a model knows kinds of defects, they say which of them alarms resemble.
    """
    fitting = [outcome.file for outcome in batch if outcome.reason is None]
    found = _inspect_files(fitting, est, explain) if fitting else {}
    return [outcome._replace(**found.get(outcome.file, {})) for outcome in batch]


def _inspect_files(files, est, explain):
    """Return, by file, what is to be said: of each alone where that of all fails."""
    try:
        has_kinds = len(est.defect_kinds_) > 0
        results = est.inspect(files, explain=explain, names=has_kinds)
    except (*_OF_FILES, *_OF_ANY) as error:
        if len(files) > 1:
            found = (_inspect_files([x], est, explain) for x in files)
            return {file: outcome for one in found for file, outcome in one.items()}
        if isinstance(error, _OF_ANY):
            _check_model(est)
        return {files[0]: {"reason": _tell_reason(files[0], error)}}
    return {
        file: {"results": Bunch(**{k: v[i : i + 1] for k, v in results.items()})}
        for i, file in enumerate(files)
    }


def _check_model(est):
    """Raise if a model, or its device, fails whatever the image is."""
    grey = np.full((1, *est.inspected_shape_), 128, dtype=np.uint8)
    est.score_samples(grey)


def _tell_reason(file, error):
    """Return a reason that names its file."""
    reason = str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError | ImageFileError | ChangedFileError):
        return reason
    return f"{file} cannot be inspected: {reason}"
