"""Results of a GPU, copied to the host while it computes the next ones."""

import torch

from skpatchsvdd._gpu.streams import current_device


def prefetch(batches, device):
    """Yield tuples of tensors on a device as tuples of arrays.

    A GPU is one batch ahead: it computes the next batch while the caller uses the
    arrays of the last one.
    """
    if device.type != "cuda":
        for tensors in batches:
            yield tuple(x.cpu().numpy() for x in tensors)
        return
    pending = None
    for tensors in batches:
        former, pending = pending, _PendingCopy(tensors, device)
        if former is not None:
            yield former.wait()
    if pending is not None:
        yield pending.wait()


class _PendingCopy:
    """Tensors that are being copied from a GPU."""

    def __init__(self, tensors, device):
        with current_device(device):
            self._copies = [_start_copy(x) for x in tensors]
            self._done = torch.cuda.Event()
            self._done.record()

    def wait(self):
        """Wait for the copies and return them as arrays."""
        self._done.synchronize()
        # Not views: pinned memory is scarce.
        return tuple(x.numpy().copy() for x in self._copies)


def _start_copy(x):
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(
        x, non_blocking=True
    )
