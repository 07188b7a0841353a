"""Who may ask for what: hosts, tokens, origins, sizes, and headers of all answers."""

import asyncio
import hmac
import re
import secrets
import time
from collections import Counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse

from skpatchsvdd._cli import tell
from skpatchsvdd._serve.answers import make_error

# What anybody may see, token or not: nothing of the model or of images.
_OPEN = {"/health", "/login", "/static/live.css"}
LOCAL = {"localhost", "127.0.0.1", "::1"}
# Bytes of the form in which a token comes.
_LOGIN_BYTES = 4096
# Most seconds between two parts of a request, and its fewest bytes a second.
_PATIENCE, _SLOWEST = 20, 50_000
# Seconds that a browser stays signed in, and browsers that are at a time.
_SESSION_SECONDS, _MOST_SESSIONS = 7 * 86400, 1000
# Most wrong tokens within so many seconds, from one address and from all.
_SPAN, _MOST_WRONG, _MOST_OF_ALL = 60, 10, 100
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer" the page's own form would come from "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Sessions:
    """Checks tokens, and keeps in memory which browsers are signed in, by a cookie.

    It belongs to the event loop and needs no locks. A restart ends all sessions.
    """

    def __init__(self, token):
        self._token = token.encode()
        self._ends = {}  # when each session ends, the oldest first
        self._wrong, self._span_end = Counter(), 0.0
        # Addresses that had the token once: a crowd elsewhere does not lock them out.
        self._trusted = set()

    def check(self, token, scope):
        """Whether a token is right; too many wrong ones are an `HTTPException`."""
        now, (address, *_) = time.monotonic(), scope.get("client") or ("unknown",)
        if now >= self._span_end:
            self._wrong.clear()
            self._span_end = now + _SPAN
        is_crowd = self._wrong.total() >= _MOST_OF_ALL and address not in self._trusted
        if is_crowd or self._wrong[address] >= _MOST_WRONG:  # without a look at it
            seconds = int(self._span_end - now) + 1
            reason = f"too many wrong tokens; try again in {seconds} seconds"
            raise HTTPException(429, reason, {"Retry-After": f"{seconds}"})
        if hmac.compare_digest(token.encode("utf-8", "replace"), self._token):
            self._trusted.add(address)
            return True
        self._wrong[address] += 1
        if self._wrong[address] == _MOST_WRONG:
            tell(f"{_MOST_WRONG} wrong tokens from {address}: no more for {_SPAN} s")
        elif self._wrong.total() == _MOST_OF_ALL:
            tell(f"{_MOST_OF_ALL} wrong tokens in all: no more for {_SPAN} s")
        elif self._wrong.total() == 1:
            tell(f"wrong token from {address}")
        return False

    def begin(self, request, answer):
        """Sign the browser of a request in: the answer brings it a cookie."""
        session = secrets.token_urlsafe(32)
        self._ends[session] = time.monotonic() + _SESSION_SECONDS
        if len(self._ends) > _MOST_SESSIONS:
            del self._ends[next(iter(self._ends))]
        answer.set_cookie(
            _name_cookie(request.headers),
            session,
            max_age=_SESSION_SECONDS,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def is_signed_in(self, headers):
        """Whether a request has the cookie of a session which has not ended."""
        return self._ends.get(_read_cookie(headers), 0.0) > time.monotonic()

    def end(self, request, answer):
        """Sign the browser of a request out."""
        self._ends.pop(_read_cookie(request.headers), None)
        answer.delete_cookie(_name_cookie(request.headers))


def _name_cookie(headers):
    """Return the name of the cookie: servers at other ports have others."""
    port = re.search(r":(\d+)$", headers.get("host", ""))
    return f"skpatchsvdd-{port[1] if port else 0}"


def _read_cookie(headers):
    return cookie_parser(headers.get("cookie", "")).get(_name_cookie(headers))


class Guard:
    """ASGI middleware before all that is served.

    Without a token only requests to names of this machine, or to `hosts`, are answered:
    else any page could reach it by a name of its own that leads here.
    """

    def __init__(self, app, sessions, hosts, max_bytes):
        self._app, self._sessions, self._max_bytes = app, sessions, max_bytes
        self._hosts = LOCAL | {x.lower() for x in hosts}

    async def __call__(self, scope, receive, send):
        """Answer a request, or refuse it."""

        async def send_guarded(message):
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.update(_HEADERS)
                answer.setdefault("Cache-Control", "no-store")
            await send(message)

        max_bytes = _LOGIN_BYTES if scope["path"] == "/login" else self._max_bytes
        headers = Headers(scope=scope)
        try:
            self._check_sender(scope["method"], headers)
            _check_length(headers, max_bytes)
            answer = self._ask_token(scope, headers)
        except HTTPException as error:
            closes = (error.headers or {}) | {"Connection": "close"}
            answer = make_error(error.status_code, error.detail, closes)
        if answer is not None:
            await answer(scope, receive, send_guarded)
        else:
            await self._app(scope, _limit(receive, max_bytes), send_guarded)

    def _check_sender(self, method, headers):
        """Raise if a request is to another host, or writes and is of another page."""
        host = headers.get("host", "")
        if self._sessions is None and _split(host).hostname not in self._hosts:
            raise HTTPException(421, "requests to this host are not answered here")
        if method not in ("GET", "HEAD") and not _is_own(headers, host):
            raise HTTPException(403, "requests of other pages are refused")

    def _ask_token(self, scope, headers):
        """Return the answer that leads to the form of the token, if it is needed."""
        if self._sessions is None or scope["path"] in _OPEN:
            return None
        if self._sessions.is_signed_in(headers):
            return None
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._sessions.check(token.strip(), scope):
            return None
        if scope["path"].endswith("/") and scope["method"] == "GET":
            return RedirectResponse("/login", status_code=303)
        reason = "a token is needed: Authorization: Bearer TOKEN"
        raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})


def _split(host):
    """Return the parts of a host; those of no host where it is malformed."""
    try:
        return urlsplit(f"//{host}")
    except ValueError:
        return urlsplit("")


def _is_own(headers, host):
    """Whether a request that writes comes from this page, or from no page at all."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    return origin is None or _split(origin.partition("://")[2]).netloc == host


def _check_length(headers, max_bytes):
    length = headers.get("content-length", "0")
    if not re.fullmatch(r"[0-9]{1,18}", length):
        raise HTTPException(400, "Content-Length must be a number")
    if int(length) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes):
    reason = f"at most {max_bytes:,} bytes are accepted; see --max-megabytes"
    return HTTPException(413, reason)


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
            raise _too_large(max_bytes)
        return message

    return limited
