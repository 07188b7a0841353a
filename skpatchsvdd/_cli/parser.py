"""The parser of all commands, made from the table of their options."""

import argparse

from skpatchsvdd._cli.options import COMMANDS
from skpatchsvdd._cli.terminal import printable
from skpatchsvdd._version import __version__


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
