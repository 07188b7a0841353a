"""Streams of CUDA."""

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
    """Call functions without parameters, on a GPU each on its own stream.

    For functions whose kernels are too small to fill a GPU.

    Returns
    -------
    results : list
        What each function returned.
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
