"""The parser of all commands, and running one: its module is imported then."""

import argparse
import importlib
import os
import sys
import warnings

from skpatchsvdd._cli.options import COMMANDS
from skpatchsvdd._cli.terminal import FAILED, INTERRUPTED, printable, tell, tell_error
from skpatchsvdd._version import __version__

# The command that is a room of its own.
_ROOMS = {"serve": "_serve"}
# What can go wrong with files, parameters, memory and numbers: a line says what.
_EXPECTED = ImportError, OSError, ValueError, RuntimeError, MemoryError, ArithmeticError


def main(argv=None):
    """Run the command line; return its exit status."""
    # Waiting threads leave the cores to others; torch, not loaded yet, reads it.
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


def make_parser():
    """Make the parser of all commands."""
    parser = _Parser(
        prog="skpatchsvdd",
        description="Find what is abnormal in images, learnt from normal images alone: "
        "fit to a folder of good ones, then inspect others.",
        epilog="Example: skpatchsvdd fit good/ -o part.model && skpatchsvdd inspect "
        "part.model new/ -o results",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    for name, (texts, options) in COMMANDS.items():
        command = commands.add_parser(name, **texts)
        for option in options:
            if isinstance(option, list):  # of which only one may be given
                target, alternatives = command.add_mutually_exclusive_group(), option
            else:
                target, alternatives = command, [option]
            for names, settings in alternatives:
                target.add_argument(*names, **settings)
    return parser


class _HelpFormatter(argparse.HelpFormatter):
    """Shows the default of every option that has one, if its text does not say it."""

    def _get_help_string(self, action):
        text = action.help
        if not action.option_strings or action.required or "default" in text:
            return text
        if action.default is argparse.SUPPRESS:  # --help and --version
            return text
        if action.default is None or action.default is False:
            return f"{text} (default: {'none' if action.default is None else 'off'})"
        return f"{text} (default: %(default)s)"


class _Parser(argparse.ArgumentParser):
    def __init__(self, **kwargs):
        super().__init__(formatter_class=_HelpFormatter, **kwargs)

    def error(self, message):
        """End with a message; what was typed, or matched by a shell, stays a line."""
        super().error(printable(message))
