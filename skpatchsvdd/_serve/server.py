"""All parts of a server, which are started and ended together."""

import ctypes
import logging
import threading
from contextlib import ExitStack, contextmanager, suppress

import uvicorn

from skpatchsvdd._cli import describe_cause, make_folder, tell
from skpatchsvdd._serve.alarms import AlarmSender, LinePrinter
from skpatchsvdd._serve.app import make_app
from skpatchsvdd._serve.batcher import Batcher
from skpatchsvdd._serve.connections import MOST, Connection
from skpatchsvdd._serve.history import History
from skpatchsvdd._serve.line import Line
from skpatchsvdd._serve.review_queue import ReviewQueue
from skpatchsvdd._serve.store import Store
from skpatchsvdd._utils import hold_lock

_STORE = "line.sqlite"
# Seconds until a connection that asks nothing more is closed.
_IDLE = 10


@contextmanager
def serving(args, token=None):
    """Start all parts but the answers; yield what gives these, a server of uvicorn's.

    It ends by itself, with `has_failed`, where one of the parts has ended.
    """

    def end(reason):
        """End the server, rather than let a page stand still."""
        tell(f"error: {reason}")
        server.has_failed = server.should_exit = True

    def watch():
        try:
            line.watch(args.watch, reviews.note_change)
        except BaseException as error:
            end(f"the watch has ended: {type(error).__name__}: {error}")

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
        line.alarms = AlarmSender(store, args.on_alarm, args.webhook)
        stack.callback(line.alarms.close)
        batcher = Batcher(lambda: line.model.est, args.queue)
        stack.callback(batcher.close)
        server = _make_server(args, line, reviews, batcher, token)
        watcher = threading.Thread(target=watch, daemon=True, name="watch")
        watcher.start()
        stack.callback(watcher.join, 30)
        stack.callback(line.close)
        yield server


def _silence():
    """Let libraries print nothing of malformed requests: their answers say it."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    with suppress(ImportError, OSError, AttributeError):  # where it cannot be reached
        from PIL import _imaging

        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


def _make_server(args, line, reviews, batcher, token):
    hosts, max_bytes = args.allow_host, round(args.max_megabytes * 1e6)
    _silence()
    config = uvicorn.Config(
        make_app(line, reviews, batcher, token, hosts, max_bytes),
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
    server = uvicorn.Server(config)
    server.has_failed = False
    return server


def _open_folders(args, stack):
    """Return the folder of what is seen and the history, which no other may use."""
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
                f"another program {what}: {error} Or pass another {another}."
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
