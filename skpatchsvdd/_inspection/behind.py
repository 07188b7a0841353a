"""Results of a GPU, fetched while it works on."""

import torch

from skpatchsvdd._utils import as_current


def fetch_behind(batches, device):
    """Yield tuples of tensors on a device as arrays.

    A GPU is one batch ahead: while its results are fetched and made use of, it computes
    the next ones.
    """
    if device.type != "cuda":
        for tensors in batches:
            yield tuple(x.cpu().numpy() for x in tensors)
        return
    behind = None
    for tensors in batches:
        fetched = _Fetched(tensors, device)
        if behind is not None:
            yield behind.wait()
        behind = fetched
    if behind is not None:
        yield behind.wait()


class _Fetched:
    """Tensors on their way from a GPU."""

    def __init__(self, tensors, device):
        with as_current(device):
            self._copies = [_start_copy(x) for x in tensors]
            self._done = torch.cuda.Event()
            self._done.record()

    def wait(self):
        """Return arrays, when they are there."""
        self._done.synchronize()
        # Not views: memory that a GPU writes to is scarce.
        return tuple(x.numpy().copy() for x in self._copies)


def _start_copy(x):
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(
        x, non_blocking=True
    )
