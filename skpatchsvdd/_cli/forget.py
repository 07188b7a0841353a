"""The command forget."""

import os

import numpy as np

from skpatchsvdd._cli.files import read_fitting
from skpatchsvdd._cli.learning import (
    change_model,
    digest_files,
    find_set_aside,
    settings_of_run,
    tell_rate,
    tell_threshold,
)
from skpatchsvdd._cli.models import load_model
from skpatchsvdd._cli.terminal import ListedError, count, print_files


def run(args):
    """Take training images out of a model, and save it."""
    return change_model(args, _forget)


def _forget(args):
    """Take images out of a model, for `change_model`; say what that changes."""
    est = load_model(args.model, encoder=args.encoder)
    digests = _find_digests(args.files, est, args.model)
    is_dropped = np.isin(est.training_digests_, digests)  # with all their copies
    files, offset = est.training_files_, est.offset_
    with settings_of_run(est, args.device):
        est.forget(is_dropped)
    gone = [files[i] or f"image {i}" for i in np.flatnonzero(is_dropped)]
    print_files(f"{args.model} forgets {count(len(gone), 'image')}:", gone)
    print(f"{count(len(est.training_files_), 'image')} stay")
    tell_threshold(est, offset)
    tell_rate(est)
    return est, None


def _find_digests(files, est, model):
    """Return the digests of training images, of which files may be gone, or raise."""
    indices = {file: i for i, file in enumerate(est.training_files_)}
    digests, faults = [], []
    for file in files:
        index = indices.get(os.path.abspath(file))
        if index is not None and est.check_training_files([index])[0] != "changed":
            digests.append(est.training_digests_[index])
        elif fault := _find_fault(file, est):
            faults.append(fault)
        else:
            digests += digest_files([file], est)
    if faults:
        raise ListedError(f"nothing can be taken out of {model}:", faults)
    return digests


def _find_fault(file, est):
    """Return why a file does not show a training image, or None."""
    _, fault = read_fitting(file, est)
    if fault or digest_files([file], est)[0] in est.training_digests_:
        return fault
    path = os.path.abspath(file)
    if path in find_set_aside(est):
        return f"{file} was set aside by fit, and nothing was learnt from it."
    if path in est.training_files_:
        return f"{file} has changed since it was learnt from."
    return f"{file} is not among the images that were learnt from."
