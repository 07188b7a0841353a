"""The command serve: what it needs is looked for before anything is made."""

import os
import signal
import socket
import threading
import time
from contextlib import suppress

from skpatchsvdd._cli import tell

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
    from skpatchsvdd._serve.options import check_options, find_token

    check_options(args)
    token, former = find_token(args), set(threading.enumerate())
    from skpatchsvdd._serve.server import serving

    # uvicorn sends itself what has ended it, when all is closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _listen(args.host, args.port) as listening, serving(args, token) as server:
        _announce(args, listening, token)
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    _wait_for(set(threading.enumerate()) - former)
    return int(server.has_failed)


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
            "Pass another --host or --port, or end what uses it."
        ) from error
    # Inherited by connections: an answer in two parts would take 40 ms longer.
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
