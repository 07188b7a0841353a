"""All parts of a server, which are started and ended together."""

import ctypes
import logging
from contextlib import ExitStack, contextmanager, suppress

import uvicorn

from skpatchsvdd._cli import tell
from skpatchsvdd._serve.alarms import LinePrinter
from skpatchsvdd._serve.app import make_app, make_station_app
from skpatchsvdd._serve.arrivals import FolderArrivals
from skpatchsvdd._serve.connections import MOST, Connection
from skpatchsvdd._serve.parts import opened_line, watching
from skpatchsvdd._serve.station import Station
from skpatchsvdd._serve.station_file import is_station

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

    with ExitStack() as stack:
        server, say = _make_server(args), None
        if args.json:
            printer = LinePrinter(lambda error: end(f"nobody reads --json: {error}"))
            stack.callback(printer.close)
            say = printer.say
        guarded = token, args.allow_host, round(args.max_megabytes * 1e6)
        if is_station(args):
            station = Station(args, say, token)
            stack.callback(station.close)
            station.start(end)
            server.config.app = make_station_app(station, *guarded)
        else:
            parts = _open_one(args, say, end, stack)
            server.config.app = make_app(*parts, *guarded)
        yield server


def _open_one(args, say, end, stack):
    """Open the line of one model; return its parts."""
    parts = stack.enter_context(opened_line(args, say))

    def watch(*of_line):
        try:
            parts.line.watch(*of_line)
        except BaseException as error:
            end(f"the watch has ended: {type(error).__name__}: {error}")

    arrivals = None if args.watch is None else FolderArrivals(args.watch)
    stack.enter_context(watching(watch, parts, arrivals))
    return parts


def _make_server(args):
    """Make a server, which is given later what answers."""
    # Libraries print nothing of malformed requests: their answers say it.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    with suppress(ImportError, OSError, AttributeError):  # where it cannot be reached
        from PIL import _imaging

        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)
    config = uvicorn.Config(
        None,
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
