"""What requests are answered with: JSON, errors among it."""

import sqlite3

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from skpatchsvdd._cli import describe_cause, printable, tell


class RefusedError(ValueError):
    """What somebody asked for cannot be done; the message says why."""


def make_error(status, reason, headers=None):
    """Return an answer that says what is wrong."""
    return JSONResponse({"error": printable(reason)}, status, headers)


def _answer_fault(request, error):
    tell(f"fault: {request.url.path}: {type(error).__name__}: {error}")
    return make_error(500, "a fault of the server, which has noted it")


def _answer_machine(request, error):
    return make_error(503, describe_cause(error))


# What is answered where an exception comes out of the function of a route.
HANDLERS = {
    HTTPException: lambda _, error: make_error(
        error.status_code, error.detail, error.headers
    ),
    RefusedError: lambda _, error: make_error(409, error),
    # Nobody reads it: the client has hung up, which is no fault.
    ClientDisconnect: lambda _, error: Response(status_code=400),
    OSError: _answer_machine,
    sqlite3.Error: _answer_machine,
    Exception: _answer_fault,
}
