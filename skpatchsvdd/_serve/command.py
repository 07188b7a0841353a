"""The command serve: all parts of a server, started and ended together."""

import logging
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

from skpatchsvdd._cli import check_exists, describe_cause, make_folder, tell
from skpatchsvdd._serve.options import check_options, find_token
from skpatchsvdd._utils import hold_lock

_STORE = "line.sqlite"
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
    check_options(args)
    token, former = find_token(args), set(threading.enumerate())
    # uvicorn sends itself what has ended it, when all is closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _listen(args.host, args.port) as listening, serving(args, token) as server:
        _announce(args, listening, token)
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    _wait_for(set(threading.enumerate()) - former)
    return int(server.has_failed)


@contextmanager
def serving(args, token=None):
    """Start all parts but the answers; yield what gives these, a server of uvicorn's.

    It ends by itself, with `has_failed`, where one of the parts has ended.
    """
    import uvicorn

    from skpatchsvdd._serve.alarms import AlarmSender, LinePrinter
    from skpatchsvdd._serve.app import make_app
    from skpatchsvdd._serve.batcher import Batcher
    from skpatchsvdd._serve.line import Line
    from skpatchsvdd._serve.review_queue import ReviewQueue
    from skpatchsvdd._serve.store import Store

    def end(reason):
        """End the server, rather than let a page stand still."""
        tell(f"error: {reason}")
        server.has_failed = server.should_exit = True

    with ExitStack() as stack:
        folder, history = _open_folders(args, stack)
        store = Store(folder / _STORE, args.keep)
        stack.callback(store.close)
        line = Line(args.model, store, args.device, args.encoder)
        with _keeping_history():
            reviews = ReviewQueue(line, history)
        if args.json:
            printer = LinePrinter(lambda error: end(f"nobody reads --json: {error}"))
            stack.callback(printer.close)
            line.say = printer.say
        watched = line, args.watch, reviews, end
        watch = threading.Thread(target=_watch, args=watched, daemon=True)
        line.alarms = AlarmSender(store, args.on_alarm, args.webhook)
        stack.callback(line.alarms.close)
        batcher = Batcher(lambda: line.model.est, args.queue)
        stack.callback(batcher.close)
        limits = token, args.allow_host, round(args.max_megabytes * 1e6)
        app = make_app(line, reviews, batcher, *limits)
        server = uvicorn.Server(_configure(app, args))
        server.has_failed = False
        watch.start()
        stack.callback(watch.join, 30)
        stack.callback(line.close)
        yield server


def _configure(app, args):
    import uvicorn

    from skpatchsvdd._serve.connections import MOST, Connection

    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # answers say it
    return uvicorn.Config(
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


def _open_folders(args, stack):
    """Return the folder of what is seen and the history, which no other may use."""
    from skpatchsvdd._serve.history import History

    folder = make_folder(args.output or f"{args.model}.line")
    with _keeping_history():
        history = History(args.model)
        history.folder.mkdir(parents=True, exist_ok=True)
    for file, what, another in (
        (folder / _STORE, f"keeps what it sees in {folder}", "folder to -o"),
        (history.log, f"uses {args.model}", "model, as a copy of it"),
    ):
        try:
            stack.enter_context(hold_lock(file))
        except BlockingIOError as error:
            raise ValueError(
                f"another server {what} ({error}). End it, or pass another {another}."
            ) from error
    return folder, history


@contextmanager
def _keeping_history():
    try:
        yield
    except OSError as error:
        raise OSError(
            "the history of the model cannot be kept beside it: "
            f"{describe_cause(error)}. Make room, or let its folder be written to."
        ) from error


def _watch(line, folder, reviews, end):
    """Watch until the end; what ends it earlier ends the server, too."""
    try:
        line.watch(folder, reviews.note_change)
    except BaseException as error:
        end(f"the watch has ended: {type(error).__name__}: {error}")


def _wait_for(threads):
    """Wait for threads that Python would wait for, and not for ever."""
    end = time.monotonic() + _LAST_SECONDS
    for thread in threads:
        thread.join(0 if thread.daemon else max(end - time.monotonic(), 0))
        if thread.is_alive() and not thread.daemon:
            tell("error: something that was asked for has not ended, and is given up")
            os._exit(1)  # what was seen is on the disk


def _listen(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(
            f"nothing can listen at {host}, port {port}: {error.strerror or error}. "
            "Pass another --port, or end what uses it."
        ) from error
    # Inherited by connections, for which asyncio sets it only where it is told the
    # protocol: an answer in two parts would take 40 ms longer.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


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
