"""Encoders that a user names on the command line."""

import importlib
import os
import sys

from torch import nn

from skpatchsvdd._cli.text import printable
from skpatchsvdd._encoding import ENCODERS


def find_encoder(text):
    """Return what --encoder names: encoders of the package, or a user's modules.

    Parameters
    ----------
    text : str or None
        Parted by commas, names of encoders, and "package.module:name" of what is to be
        imported: a torch.nn.Module, or something that returns one when it is called
        without arguments.

    Returns
    -------
    encoder : str, torch.nn.Module or list of both, or None
    """
    if text is None:
        return None
    found = [_import_encoder(x) if ":" in x else x for x in text.split(",")]
    unknown = [x for x in found if isinstance(x, str) and x not in (*ENCODERS, "auto")]
    if unknown:
        raise ValueError(
            f"--encoder must name {', '.join((*ENCODERS, 'auto'))}, or what to import, "
            f"as in my_package.my_module:make, got {unknown[0]!r}."
        )
    return found[0] if len(found) == 1 else found


def _import_encoder(text):
    """Import, and call if need be, what a user has named; say so."""
    name, _, attribute = text.partition(":")
    print(f"--encoder {printable(text)}: importing {printable(name)}, which runs it")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as python -m has it
    try:
        found = importlib.import_module(name)
        for part in attribute.split("."):
            found = getattr(found, part)
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
