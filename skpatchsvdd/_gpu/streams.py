"""Streams of CUDA, and results copied to the host while a GPU computes the next."""

import threading
from contextlib import nullcontext

import torch

_STREAMS = threading.local()


def current_device(device):
    """Context in which calls of CUDA that name no device mean this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def thread_stream(role, device, priority=0):
    """Return a stream of a GPU, the same one for each role in each thread.

    torch has 32 streams, and sets memory aside for every one that computes.
    """
    known = _STREAMS.__dict__.setdefault("by_role", {})
    key = role, device, priority
    if key not in known:
        known[key] = torch.cuda.Stream(device, priority)
    return known[key]


def run_concurrently(calls, device):
    """Return what functions without parameters return, a list.

    On a GPU each has its own stream, for functions whose kernels are too small to fill
    it.
    """
    if device.type != "cuda":
        return [call() for call in calls]
    main = torch.cuda.current_stream(device)
    streams = [thread_stream(i, device, main.priority) for i in range(len(calls))]
    results = []
    for call, stream in zip(calls, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(call())
    for stream in streams:
        main.wait_stream(stream)
    for x in results:
        if isinstance(x, torch.Tensor):
            x.record_stream(main)  # its memory is not used again too early
    return results


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
        former, pending = pending, _start_copies(tensors, device)
        if former is not None:
            yield _finish_copies(*former)
    if pending is not None:
        yield _finish_copies(*pending)


def _start_copies(tensors, device):
    """Begin to copy tensors from a GPU; return copies, and an event when they are."""
    with current_device(device):
        copies = [
            torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(
                x, non_blocking=True
            )
            for x in tensors
        ]
        done = torch.cuda.Event()
        done.record()
    return copies, done


def _finish_copies(copies, done):
    done.synchronize()
    # Not views: pinned memory is scarce.
    return tuple(x.numpy().copy() for x in copies)
