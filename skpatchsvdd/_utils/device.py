"""The device that a `device` parameter means."""

import torch

from skpatchsvdd._utils.warnings import warn


def check_device(name):
    """Return the torch device that a `device` parameter means on this machine.

    "auto" is CUDA where there is a GPU and the CPU elsewhere.
    """
    device, is_there = _find_device(name)
    if not is_there:
        raise ValueError(
            f"device={name!r} is not available on this machine. "
            "Pass device='auto' or device='cpu'."
        )
    return device


def fallback_device(name):
    """Like `check_device`, but an absent device becomes the CPU, with a warning."""
    device, is_there = _find_device(name)
    if is_there:
        return device
    warn(
        f"device={name!r} is not available on this machine. Continuing on the CPU; "
        "device='auto' would do so without a warning.",
    )
    return torch.device("cpu")


def check_device_name(name):
    """Raise unless a name is that of a device, which need not be there."""
    if name != "auto":
        _parse_device(name)


def _find_device(name):
    """Return the device that a parameter means, and whether it is there."""
    if name == "auto":
        _check_fork(name)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu"), True
    device = _parse_device(name)
    if device.type == "cuda":
        _check_fork(name)
        return device, (device.index or 0) < torch.cuda.device_count()
    return device, device.type == "cpu" or torch.backends.mps.is_available()


def _check_fork(name):
    """Raise if CUDA was used before this process was forked, so that it cannot here.

    Asking whether there is a GPU is to use it, also where there is none.
    """
    if torch.cuda._is_in_bad_fork() and torch.cuda.device_count() > 0:
        raise RuntimeError(
            f"device={name!r} means the GPU, but this process was forked from one that "
            "had used CUDA, which CUDA does not allow. Start processes by spawn, as "
            "joblib's loky does, or set_params(device='cpu')."
        )


def _parse_device(name):
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(
            f"device must be 'auto', 'cpu', 'cuda', 'cuda:1' (or another index) or "
            f"'mps', got {name!r}."
        )
    return device
