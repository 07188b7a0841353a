"""How a call of an estimator computes: threads, gradients, memory, and after a fork."""

import functools

import torch

from skpatchsvdd._utils.threads import (
    safe_after_fork,
    sleeping_teams,
    torch_threads,
)

# How to need less of a GPU's memory, by the method that ran out of it.
_LESS_MEMORY = {
    "fit": "Pass a smaller Training(batch_size=...) if it was training, a smaller "
    "bank_size or image_size if it was after training, or device='cpu'.",
    "partial_fit": "set_params(bank_size=...) with fewer patches, or device='cpu'.",
}
_LESS_TO_SCORE = (
    "set_params(device='cpu') scores on the CPU; a smaller bank_size in fit makes a "
    "model that takes less."
)


def computes(method):
    """Decorate a method of an estimator that computes with torch; see `compute`."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return compute(method, self, args, kwargs)

    return call


@safe_after_fork
def compute(method, estimator, args, kwargs):
    """Call a method of an estimator that computes with torch.

    It uses `n_jobs` threads, in torch's normal mode whatever that of the caller is, and
    where a GPU's memory runs out it says what to do.
    """
    try:
        with torch_threads(estimator.n_jobs), sleeping_teams(), normal_mode():
            return method(estimator, *args, **kwargs)
    except torch.cuda.OutOfMemoryError as error:
        if isinstance(error.__cause__, torch.cuda.OutOfMemoryError):
            raise  # from a method that this one calls
        name = method.__name__
        advice = _LESS_MEMORY.get(name, _LESS_TO_SCORE)
        raise torch.cuda.OutOfMemoryError(
            f"the memory of the GPU ran out in {name}; the estimator is as it was. "
            f"{advice} ({error})"
        ) from error


def normal_mode():
    """Context in which torch computes gradients, whatever the mode of the caller is.

    Training needs them, and tensors that are made in inference mode can be used in no
    other one.
    """
    return torch.inference_mode(False)
