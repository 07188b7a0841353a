"""Files inspected batch by batch, so that none takes others with it."""

import errno
from typing import NamedTuple

import numpy as np
from sklearn.utils import Bunch

from skpatchsvdd._cli.files import find_misfit, find_state
from skpatchsvdd._cli.terminal import describe_error
from skpatchsvdd._images import ChangedFileError, ImageFileError, read_shape
from skpatchsvdd._report import Notes
from skpatchsvdd._utils import is_out_of_memory

# Images inspected at a time, and their pixels, about: so much is done again after an
# interruption, and so many maps are in memory.
_BATCH, _BATCH_PIXELS = 16, 2**24
# What says itself which file is at fault.
_OF_FILES = (FileNotFoundError, ImageFileError, ChangedFileError)
# What no file can have caused, and may be over at any moment.
_OF_MACHINE = {errno.EMFILE, errno.ENFILE, errno.ENOSPC}


class Outcome(NamedTuple):
    """What there is to say about one file."""

    file: str
    state: int | None  # before it was read; see `files.find_state`
    reason: str | None = None  # why it cannot be inspected
    note: str = ""  # in which way it differs from the training images
    may_pass: bool = False  # the fault is not the file's: try again later
    passes_soon: bool = False  # nor its folder's, but the machine's
    results: Bunch | None = None  # what `PatchSVDD.inspect` says of it alone

    def fail(self, error):
        """Return the outcome with an exception as the reason."""
        reason = describe_error(error)
        may_pass = is_out_of_memory(error) or (
            isinstance(error, OSError) and error.errno is not None
        )
        if not isinstance(error, (*_OF_FILES, MemoryError)):
            reason = f"{self.file} cannot be inspected: {reason}"
        passes = {"may_pass": may_pass, "passes_soon": is_of_machine(error)}
        return self._replace(reason=reason, results=None, **passes)


def is_of_machine(error):
    """Whether an exception says that the disk is full, or too many files are open."""
    return getattr(error, "errno", None) in _OF_MACHINE


def cut_batches(files, est, size=None):
    """Yield lists of outcomes, with a reason where a file does not fit to a model."""
    batch, n_pixels, notes = [], 0, Notes(est)
    for file in map(str, files):
        outcome = Outcome(file, find_state(file))
        try:
            shape = read_shape(file)
            reason, note = find_misfit(file, shape, est), notes.find(shape)
            batch.append(outcome._replace(reason=reason, note=note))
            n_pixels += shape[0] * shape[1]
        except Exception as error:
            batch.append(outcome.fail(error))
        if len(batch) == (size or _BATCH) or n_pixels >= _BATCH_PIXELS:
            yield batch
            batch, n_pixels = [], 0
    if batch:
        yield batch


def inspect_batch(batch, est, explain=False):
    """Return the outcomes of a batch, with results or with reasons, in its order."""
    fitting = [outcome for outcome in batch if outcome.reason is None]
    found = iter(_inspect_fitting(fitting, est, explain) if fitting else [])
    return [next(found) if x.reason is None else x for x in batch]


def _inspect_fitting(batch, est, explain):
    """Return outcomes with results: of each alone where that of all fails."""
    files = [outcome.file for outcome in batch]
    try:
        has_kinds = len(est.defect_kinds_) > 0
        results = est.inspect(files, explain=explain, names=has_kinds)
    except Exception as error:
        if len(batch) > 1:
            return [x for one in batch for x in _inspect_fitting([one], est, explain)]
        if not isinstance(error, _OF_FILES):
            # Raises if the model, or its device, fails whatever the image is.
            est.score_samples(np.full((1, *est.inspected_shape_), 128, dtype=np.uint8))
        return [batch[0].fail(error)]
    return [
        outcome._replace(results=Bunch(**{k: v[i : i + 1] for k, v in results.items()}))
        for i, outcome in enumerate(batch)
    ]
