"""The command serve."""

import ctypes
import logging
import os
import shutil
import signal
import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

from skpatchsvdd._cli.files import make_folder
from skpatchsvdd._cli.models import check_exists
from skpatchsvdd._cli.terminal import FAILED, OK, describe_cause, tell
from skpatchsvdd._utils import hold_lock

_TOKEN = "SKPATCHSVDD_TOKEN"
_SHORTEST_TOKEN = 16
_BASE = "line.sqlite"
# Seconds until a connection that asks nothing more is closed.
_IDLE = 10
# Seconds that threads have at the end: a disk or a network can hold one up for ever.
_LAST_SECONDS = 5


def run(args):
    """Serve a live page and an API until Ctrl-C, or a signal to end."""
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"serve needs {error.name}: pip install starlette uvicorn "
            "python-multipart prometheus_client"
        ) from error
    check_exists(args.model)
    _check_options(args)
    token = _find_token(args)
    folder = make_folder(args.output or f"{args.model}.line")
    history = _make_history(args.model)
    with ExitStack() as locks:
        for file, what, another in (
            (folder / _BASE, f"keeps what it sees in {folder}", "folder to -o"),
            (history.log, f"uses {args.model}", "model, as a copy of it"),
        ):
            try:
                locks.enter_context(hold_lock(file))
            except BlockingIOError as error:
                raise ValueError(
                    f"another server {what} ({error}). End it, or pass another "
                    f"{another}."
                ) from error
        return _serve(args, folder, history, token)


def _make_history(model):
    """Make the folder of the history of a model."""
    from skpatchsvdd._cli.serve.history import History

    try:
        history = History(model)
        history.folder.mkdir(parents=True, exist_ok=True)
        return history
    except OSError as error:
        raise _cannot_keep(error) from error


def _cannot_keep(error):
    return OSError(
        f"the history of the model cannot be kept beside it: {describe_cause(error)}. "
        "Make room, or let its folder be written to."
    )


def _check_options(args):
    """Raise, before anything is made, if an option names nothing that there is."""
    if args.watch is not None and not Path(args.watch).is_dir():
        what = "is a file, no folder" if Path(args.watch).exists() else "is no folder"
        raise FileNotFoundError(
            f"--watch {args.watch} {what}: pass the one in which images arrive."
        )
    if args.on_alarm is not None and not args.on_alarm:
        raise ValueError("--on-alarm needs the program that is to be run.")
    if args.on_alarm and shutil.which(args.on_alarm[0]) is None:
        raise FileNotFoundError(
            f"--on-alarm {args.on_alarm[0]}: there is no such program. Pass its path."
        )
    if args.webhook is not None:
        found = urlsplit(args.webhook)
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ValueError(
                f"--webhook must be an address as in http://host/path, got "
                f"{args.webhook!r}."
            )
    if args.key is not None and args.certificate is None:
        raise ValueError("--key is that of a --certificate: pass both.")
    if args.certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(args.certificate, args.key)
        except OSError as error:
            files = " and ".join(filter(None, (args.certificate, args.key)))
            raise ValueError(
                f"no certificate and its key can be read from {files}: "
                f"{describe_cause(error)}. Both must be PEM; the key can be in the "
                "file of the certificate."
            ) from error


def _find_token(args):
    """Return the token, or None where none is needed; raise where one is missing."""
    from skpatchsvdd._cli.serve.guard import is_local

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
    if token is None and not is_local(args.host):
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


def _serve(args, folder, history, token):
    import uvicorn

    from skpatchsvdd._cli.serve.app import make_app
    from skpatchsvdd._cli.serve.batcher import Batcher
    from skpatchsvdd._cli.serve.connections import MOST, Connection
    from skpatchsvdd._cli.serve.desk import Desk
    from skpatchsvdd._cli.serve.line import Line
    from skpatchsvdd._cli.serve.signals import Lines, Signals
    from skpatchsvdd._cli.serve.store import Store

    former = set(threading.enumerate())
    listening = _listen(args.host, args.port)
    store = Store(folder / _BASE, args.keep)
    line = Line(args.model, store, args.device, args.encoder)
    lines = None
    if args.json:
        lines = Lines(lambda error: _end(line, f"nobody reads --json: {error}"))
        line.say = lines.say
    try:
        desk = Desk(line, history)
    except OSError as error:
        raise _cannot_keep(error) from error
    line.signals = Signals(store, args.on_alarm, args.webhook)
    batcher = Batcher(lambda: line.model.est, args.queue)
    max_bytes = round(args.max_megabytes * 1e6)
    app = make_app(line, desk, batcher, token, args.allow_host, max_bytes)
    watcher = threading.Thread(
        target=_watch, args=(line, args.watch, desk), daemon=True, name="watch"
    )
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=MOST,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=5,
        ssl_certfile=args.certificate,
        ssl_keyfile=args.key,
        proxy_headers=False,
    )
    logging.getLogger("asyncio").addFilter(_Seldom())
    _silence()
    try:
        # uvicorn sends itself what has ended it, when all is closed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        watcher.start()
        _announce(args, listening, token)
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        line.close()
        batcher.close()
        line.signals.close()
        if watcher.ident is not None:
            watcher.join(30)
        if lines is not None:
            lines.close()
        store.close()
        _wait_for(set(threading.enumerate()) - former)
    return FAILED if line.has_failed else OK


def _wait_for(threads):
    """Wait for threads that Python would wait for, and not for ever."""
    end = time.monotonic() + _LAST_SECONDS
    for thread in threads:
        thread.join(0 if thread.daemon else max(end - time.monotonic(), 0))
        if thread.is_alive() and not thread.daemon:
            tell("error: something that was asked for has not ended, and is given up")
            os._exit(FAILED)  # what was seen is on the disk


def _watch(line, folder, desk):
    """Watch until the end; what ends it earlier ends the server, too."""
    try:
        line.watch(folder, desk.note_change)
    except BaseException as error:
        _end(line, f"the watch has ended: {type(error).__name__}: {error}")


def _end(line, reason):
    """End the server, rather than let a page stand still."""
    tell(f"error: {reason}")
    line.has_failed = True
    os.kill(os.getpid(), signal.SIGTERM)


def _silence():
    """Let libraries print nothing of malformed requests: their answers say it."""
    for name in ("python_multipart", "multipart"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with suppress(ImportError, OSError, AttributeError):  # where it cannot be reached
        from PIL import _imaging

        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


class _Seldom(logging.Filter):
    """One message a minute: asyncio has one for each connection it cannot accept."""

    _last = -60.0

    def filter(self, record):
        """Whether to print a message."""
        is_due = time.monotonic() - self._last >= 60
        if is_due:
            self._last = time.monotonic()
        return is_due


def _listen(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
        # Inherited by connections, for which asyncio sets it only where it is told the
        # protocol: an answer in two parts would take 40 ms longer.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise OSError(
            f"nothing can listen at {host}, port {port}: {error.strerror or error}. "
            "Pass another --port, or end what uses it."
        ) from error


def _announce(args, listening, token):
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    scheme = "https" if args.certificate else "http"
    tell(f"open {scheme}://{host}:{port}/ in a browser; Ctrl-C ends it")
    if token is not None and not args.certificate and args.host != "127.0.0.1":
        tell(
            "warning: without --certificate the token and all pictures cross the "
            "network in the clear."
        )
