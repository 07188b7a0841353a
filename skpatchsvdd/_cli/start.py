"""Running a command: its module is imported when it is run."""

import importlib
import os
import sys
import warnings

from skpatchsvdd._cli.parser import make_parser
from skpatchsvdd._cli.terminal import FAILED, INTERRUPTED, tell, tell_error

# The command that is a room of its own.
_ROOMS = {"serve": "_serve"}
# What can go wrong with files, parameters, memory and numbers: a line says what.
_EXPECTED = (
    *(ImportError, OSError, ValueError),
    *(RuntimeError, MemoryError, ArithmeticError),
)


def main(argv=None):
    """Run the command line; return its exit status."""
    # Threads that wait for each other leave the cores to other processes. torch, which
    # reads it when it is loaded, is not here yet.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        args = make_parser().parse_args(argv)
        if hasattr(sys.stdout, "reconfigure"):
            # A log shows how far it has come, and any name of a file can be printed.
            sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)  # of every batch
            warnings.showwarning = lambda text, *_, **__: tell(f"warning: {text}")
            return _run(args)
    except _EXPECTED as error:
        tell_error(error)
        return FAILED
    except KeyboardInterrupt as error:
        tell(": ".join(["interrupted", *map(str, error.args)]))
        return INTERRUPTED


def _run(args):
    """Run a command: the function `run` of its room, or of the module of its name."""
    name = _ROOMS.get(args.command, f"_cli.{args.command}")
    module = importlib.import_module(f"skpatchsvdd.{name}")
    if getattr(args, "device", None) is not None:
        from skpatchsvdd._utils import check_device

        check_device(args.device)  # before any image is blamed for it
    if "max_pixels" not in args:
        return module.run(args)
    from skpatchsvdd._images import limited_pixels

    with limited_pixels(args.max_pixels):
        return module.run(args)
