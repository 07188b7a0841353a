"""Who may ask for what: hosts, tokens, origins, sizes, and headers of all answers."""

import asyncio
import re
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse

from skpatchsvdd._cli.serve.sessions import TooManyGuesses

# What anybody may see, token or not: nothing of the model or of images.
_OPEN = {"/health", "/login", "/static/live.css"}
_LOCAL = {"localhost", "127.0.0.1", "::1"}
# Bytes of the form in which a token comes.
_LOGIN_BYTES = 4096
# Seconds that a client may take to send the next part of a request, and bytes a second
# that all of them must have.
_PATIENCE, _SLOWEST = 20, 50_000
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer" browsers would say of the page's own form that it came from
    # "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def name_cookie(headers):
    """Return the name of the cookie: servers at other ports have others."""
    port = re.search(r":(\d+)$", headers.get("host", ""))
    return f"skpatchsvdd-{port[1] if port else 0}"


def find_address(scope):
    """Return the address that a request comes from, as a text."""
    return (scope.get("client") or ("unknown",))[0]


def is_local(host):
    """Whether a host is this machine alone."""
    return host in _LOCAL


class Guard:
    """ASGI middleware before all that is served.

    Without a token only requests to names of this machine, or to `hosts`, are
    answered: else any page could reach it by a name of its own that leads here. Writes
    must come from this page, or from no page. A body has at most `max_bytes`.
    """

    def __init__(self, app, sessions, hosts, max_bytes):
        self._app, self._sessions, self._max_bytes = app, sessions, max_bytes
        self._hosts = _LOCAL | {x.lower() for x in hosts}

    async def __call__(self, scope, receive, send):
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_guarded(message):
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answer[name] = value
                answer.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._find_refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        limit = self._find_limit(scope["path"])
        await self._app(scope, _limit(receive, limit), send_guarded)

    def _find_limit(self, path):
        return _LOGIN_BYTES if path == "/login" else self._max_bytes

    def _find_refusal(self, scope, headers):
        path, method = scope["path"], scope["method"]
        host = headers.get("host", "")
        if self._sessions is None and _name_of(host) not in self._hosts:
            return _refuse(421, "requests to this host are not answered here")
        if method not in ("GET", "HEAD") and not _is_own(headers, host):
            return _refuse(403, "requests of other pages are refused")
        try:
            length = int(headers.get("content-length", 0))
        except ValueError:
            return _refuse(400, "Content-Length must be a number")
        if length > self._find_limit(path):
            return _refuse(413, _describe_limit(self._find_limit(path)))
        if self._sessions is None or path in _OPEN:
            return None
        try:
            if self._is_known(headers, find_address(scope)):
                return None
        except TooManyGuesses as error:
            return refuse_guess(error)
        if path == "/" and method == "GET":
            return RedirectResponse("/login", status_code=303)
        answer = _refuse(401, "a token is needed: Authorization: Bearer TOKEN")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _is_known(self, headers, address):
        """Whether a request has the token, or the cookie of who has shown it."""
        if self._sessions.is_signed_in(read_cookie(headers)):
            return True
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._sessions.check(token.strip(), address)


def read_cookie(headers):
    """Return what the cookie of a request holds, or an empty text."""
    return cookie_parser(headers.get("cookie", "")).get(name_cookie(headers), "")


def _limit(receive, max_bytes):
    """Return a `receive` that refuses bodies that are too large, or too slow."""
    n_bytes, is_whole = 0, False
    end = time.monotonic() + _PATIENCE + max_bytes / _SLOWEST

    async def limited():
        nonlocal n_bytes, is_whole
        if is_whole:  # all that comes is the end of the connection
            return await receive()
        try:
            patience = min(_PATIENCE, max(end - time.monotonic(), 0))
            message = await asyncio.wait_for(receive(), patience)
        except asyncio.TimeoutError:
            raise HTTPException(408, "the request came too slowly") from None
        n_bytes += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if n_bytes > max_bytes:
            raise HTTPException(413, _describe_limit(max_bytes))
        return message

    return limited


def _name_of(host):
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_own(headers, host):
    """Whether a request that writes comes from this page, or from no page at all.

    Browsers say so themselves, or at least, as over http from elsewhere, of which page
    it is.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    try:
        return origin is None or urlsplit(origin).netloc == host
    except ValueError:
        return False


def _describe_limit(max_bytes):
    return f"at most {max_bytes:,} bytes are accepted; see --max-megabytes"


def _refuse(status, reason):
    return JSONResponse({"error": reason}, status, {"Connection": "close"})


def refuse_guess(error):
    """Answer a token that is not looked at."""
    answer = _refuse(429, str(error))
    answer.headers["Retry-After"] = f"{error.seconds}"
    return answer
