"""Options of the command serve that name nothing that there is."""

import os
import shutil
import ssl
from pathlib import Path

from skpatchsvdd._cli import check_exists, describe_cause
from skpatchsvdd._serve.access import LOCAL
from skpatchsvdd._serve.station_file import is_address, is_station, read_lines

_TOKEN, _SHORTEST_TOKEN = "SKPATCHSVDD_TOKEN", 16


def check_options(args):
    """Raise, before anything is made, if an option names nothing that there is."""
    _check_what(args)
    if args.watch is not None and not Path(args.watch).is_dir():
        is_file = Path(args.watch).exists()
        what = "is a file, not a folder" if is_file else "is not a folder"
        raise FileNotFoundError(
            f"--watch {args.watch} {what}: pass the one in which images arrive."
        )
    if args.on_alarm is not None and not args.on_alarm:
        raise ValueError("--on-alarm needs the program that is to be run.")
    if args.on_alarm and shutil.which(args.on_alarm[0]) is None:
        raise FileNotFoundError(
            f"--on-alarm {args.on_alarm[0]}: there is no such program. Pass its path."
        )
    if args.webhook is not None and not is_address(args.webhook):
        raise ValueError(
            f"--webhook must be an address as in http://host/path, got "
            f"{args.webhook!r}."
        )
    _check_certificate(args.certificate, args.key)


def _check_what(args):
    """Raise unless there is one model, or a file of a station, or lines."""
    if (args.model is None) == (not args.line):
        raise ValueError(
            "pass a model, or the file of a station, such as station.toml, or one or "
            "more --line NAME=MODEL:SOURCE."
        )
    if not is_station(args):
        check_exists(args.model)
        return
    if args.watch is not None or args.output is not None:
        option = "--watch" if args.watch is not None else "--output"
        raise ValueError(
            f"{option} is of one model alone: with several lines each has its own "
            f"{'source' if args.watch is not None else 'output, in a station file'}."
        )
    read_lines(args)


def _check_certificate(certificate, key):
    if certificate is None:
        if key is not None:
            raise ValueError("--key is that of a --certificate: pass both.")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        files = " and ".join(filter(None, (certificate, key)))
        raise ValueError(
            f"no certificate and its key can be read from {files}: "
            f"{describe_cause(error)}. Both must be PEM; the key can be in the file of "
            "the certificate."
        ) from error


def find_token(args):
    """Return the token, or None where none is needed; raise where one is missing."""
    token = os.environ.get(_TOKEN)
    if args.token_file is not None:
        try:
            token = Path(args.token_file).read_text("utf-8")
        except OSError as error:
            raise ValueError(
                f"--token-file {args.token_file} cannot be read: "
                f"{describe_cause(error)}."
            ) from error
    token = token.strip() if token else None
    if token is None and args.host not in LOCAL:
        raise ValueError(
            f"--host {args.host} can be reached from other machines, which takes a "
            f"token: put one of at least {_SHORTEST_TOKEN} characters into a file and "
            f"pass --token-file, or set {_TOKEN}. For this machine alone leave --host "
            "out."
        )
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii()):
        raise ValueError(
            f"the token must have at least {_SHORTEST_TOKEN} characters of ASCII, got "
            f'{len(token)}. Make one: python -c "import secrets; '
            'print(secrets.token_urlsafe())"'
        )
    return token
