"""Model files, and encoders that a user names, for the command line."""

import importlib
import operator
import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path

from torch import nn

from skpatchsvdd._calibration import threshold_from_scores
from skpatchsvdd._cli.terminal import printable
from skpatchsvdd._encoding import ENCODERS
from skpatchsvdd._patch_svdd import load
from skpatchsvdd._utils import check_file_name, is_model_file, replaced_when_whole

_N_BACKUPS = 5  # former models that stay


def check_output(path):
    """Raise, before any work, if a model cannot be saved under a name."""
    path = check_file_name(path)
    if path.exists() and not is_model_file(path):
        raise ValueError(f"{path} exists and is not a model file. Pass another name.")
    check_folder(path)


def check_folder(path):
    """Raise if nothing can be written where a file is to be; say what will be made."""
    parents = path.absolute().parents
    folder = next(x for x in parents if x.exists())
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{path} cannot be written: {folder} is a file, not a folder."
        )
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{path} cannot be written: {folder} does not allow it.")
    if folder != parents[0]:
        print(f"there is no folder {printable(path.parent)} yet: it will be made")


def check_exists(path):
    """Raise if there is no model file."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no model {path}. Pass one that fit wrote.")
    if not path.is_file():
        raise ValueError(f"{path} is not a model file. Pass one that fit wrote.")


def back_up(path):
    """Copy a model file to .bak; return that. A former one becomes .bak2, and so on."""
    backups = [Path(f"{path}.bak{x}") for x in ["", *range(2, _N_BACKUPS + 1)]]
    with replaced_when_whole(backups[0]) as partial:
        shutil.copyfile(path, partial)
        for newer, older in reversed([*pairwise(backups)]):
            if newer.exists():
                newer.replace(older)
    return backups[0]


def load_model(path, device=None, encoder=None, mmap=False):
    """Load a model; `encoder` is what --encoder names, for a module of a user."""
    check_exists(path)
    est = load(path, mmap, find_encoder(encoder))
    return est if device is None else est.set_params(device=device)


def choose_offset(est, rate=None, factor=None):
    """Return the score below which an image is abnormal: a model's own, or another."""
    if rate is not None:
        scores, groups = est.calibration_scores_, est.calibration_groups_
        return threshold_from_scores(scores, rate, groups, name="false_alarm_rate")
    if factor is None:
        return est.offset_
    if est.offset_ >= 0:
        raise ValueError(
            "the model's threshold is 0, and so is any multiple of it. Pass "
            "--false-alarm-rate instead of --threshold."
        )
    return factor * est.offset_


def find_encoder(text):
    """Return what --encoder names: a str, a torch.nn.Module, or a list of both."""
    if text is None:
        return None
    names, encoders = (*ENCODERS, "auto"), []
    for name in text.split(","):
        if name not in names and ":" not in name:
            raise ValueError(
                f"--encoder must name {', '.join(names)}, or what to import, as in "
                f"my_package.my_module:make, got {name!r}."
            )
        encoders.append(name if name in names else _import_encoder(name))
    return encoders[0] if len(encoders) == 1 else encoders


def import_named(text):
    """Import what a user names as package.module:name, also from the current folder."""
    module, _, names = text.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as python -m does
    return operator.attrgetter(names)(importlib.import_module(module))


def _import_encoder(text):
    """Import, and call if need be, what a user has named; say so."""
    name = printable(text.partition(":")[0])
    print(f"--encoder {printable(text)}: importing {name}, which runs it")
    try:
        found = import_named(text)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--encoder {text} cannot be imported: {error}. Pass package.module:name, "
            "of what lies in the current folder or is installed."
        ) from error
    if not isinstance(found, nn.Module) and callable(found):
        found = found()
    if not isinstance(found, nn.Module):
        raise ValueError(
            f"--encoder {text} must be a torch.nn.Module, or return one when it is "
            f"called without arguments; it is a {type(found).__name__}."
        )
    return found
