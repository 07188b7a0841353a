"""What is served: the live page, what it asks for, and requests of programs."""

import asyncio
import base64
import functools
import json
import mimetypes
import os
import re
import secrets
import sqlite3
import time
from importlib.resources import files
from urllib.parse import parse_qs

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

from skpatchsvdd._cli.files import find_misfit
from skpatchsvdd._cli.maps import encode_grey
from skpatchsvdd._cli.serve.batcher import Busy
from skpatchsvdd._cli.serve.desk import Refused
from skpatchsvdd._cli.serve.guard import Guard, find_address, name_cookie, read_cookie
from skpatchsvdd._cli.serve.line import SPANS, describe_result
from skpatchsvdd._cli.serve.openapi import OPENAPI
from skpatchsvdd._cli.serve.sessions import Sessions, TooManyGuesses
from skpatchsvdd._cli.terminal import describe_cause, printable, tell
from skpatchsvdd._images import find_max_pixels, read_bytes, read_shape
from skpatchsvdd._report import read_unchanged
from skpatchsvdd._version import __version__

# Images of one request, at most, and bytes of what the page sends.
_MOST_IMAGES, _MOST_JSON = 16, 2**20
_STATIC = {
    name: ("text/javascript" if name.endswith("js") else "text/css", package)
    for package, names in (
        ("skpatchsvdd._cli.serve", ("live.js", "live.css")),
        ("skpatchsvdd._report", ("picture.js", "picture.css")),
    )
    for name in names
}
_LONGEST_NAME, _DIGITS = 60, r"[0-9]{1,18}"
# Seconds that the images of a request may take to decode, waiting for others included,
# and how many times more pixels a file of the folder may have than all of them.
_DECODE_SECONDS, _TIMES_LESS = 10, 3
_SPAN_SECONDS = 3  # that plots are kept
_YEAR = "private, max-age=31536000, immutable"


def make_app(line, desk, batcher, token=None, hosts=(), max_bytes=2**25):
    """Make the ASGI application of a line."""
    sessions = Sessions(token) if token else None
    server = _Server(line, desk, batcher, sessions)
    routes = [
        Route("/", server.show_page),
        Route("/login", server.show_login),
        Route("/login", server.log_in, methods=["POST"]),
        Route("/logout", server.log_out, methods=["POST"]),
        Route("/static/{name}", server.send_static),
        Route("/health", server.tell_health),
        Route("/metrics", server.send_metrics),
        Route("/openapi.json", server.send_openapi),
        Route("/inspect", server.inspect, methods=["POST"]),
        Route("/api/state", server.send_state),
        Route("/api/images", server.list_images),
        Route("/api/changes", server.list_changes),
        Route("/api/images/{number}", server.send_image),
        Route("/images/{number}/original", server.send_original),
        Route("/images/{number}/{digest}/{name}", server.send_picture),
        Route("/api/history", server.list_history),
        Route("/api/seen", server.see, methods=["POST"]),
        Route("/api/say", server.say, methods=["POST"]),
        Route("/api/try", server.start_trial, methods=["POST"]),
        Route("/api/drop", server.drop_trial, methods=["POST"]),
        Route("/api/apply", server.apply, methods=["POST"]),
        Route("/api/restore", server.restore, methods=["POST"]),
    ]
    handlers = {HTTPException: _answer_error, Refused: _answer_refusal}
    handlers[ClientDisconnect] = _answer_nobody
    handlers |= dict.fromkeys((OSError, sqlite3.Error), _answer_trouble)
    handlers[Exception] = _answer_fault
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, sessions, hosts, max_bytes)


def _answer_error(request, error):
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _answer_refusal(request, error):
    return JSONResponse({"error": str(error)}, 409)


def _answer_nobody(request, error):
    """Answer a client that has hung up: that is no fault, and nobody reads it."""
    return Response(status_code=400)


def _answer_trouble(request, error):
    """Answer where the machine does not let something be done."""
    return JSONResponse({"error": printable(describe_cause(error))}, 503)


def _answer_fault(request, error):
    tell(f"fault: {request.url.path}: {type(error).__name__}: {error}")
    return JSONResponse({"error": "a fault of the server, which has noted it"}, 500)


class _Server:
    """The functions behind the routes; those without async run in threads."""

    def __init__(self, line, desk, batcher, sessions):
        self._line, self._desk, self._batcher = line, desk, batcher
        self._store, self._sessions = line.store, sessions
        self._run = secrets.token_hex(8)  # of this process: another begins anew
        self._spans = 0.0, None

    def show_page(self, request):
        return HTMLResponse(_read_own("live.html"))

    def show_login(self, request):
        return _show_login()

    async def log_in(self, request):
        body = (await request.body()).decode("utf-8", "replace")
        given = parse_qs(body).get("token", [""])[0].strip()
        if self._sessions is None:
            return RedirectResponse("/", 303)
        try:
            if not self._sessions.check(given, find_address(request.scope)):
                return _show_login("This is not the token.", 401)
        except TooManyGuesses as error:
            return _show_login(f"There were {error}.", 429)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            name_cookie(request.headers),
            self._sessions.begin(),
            max_age=self._sessions.seconds,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def log_out(self, request):
        if self._sessions is not None:
            self._sessions.end(read_cookie(request.headers))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(name_cookie(request.headers))
        return answer

    def send_static(self, request):
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404, "there is no such file")
        kind, package = _STATIC[name]
        return Response(_read_own(name, package), media_type=kind)

    async def tell_health(self, request):  # whatever threads wait for
        return JSONResponse({"status": "ok"})

    def send_metrics(self, request):
        text = self._line.metrics.write(self._line, self._batcher.n_waiting)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def send_openapi(self, request):
        return JSONResponse(OPENAPI)

    async def inspect(self, request):
        """Inspect the images of a request, beside those of others."""
        start = time.monotonic()
        bodies, requested = await _read_images(request), self._line.metrics.requested
        try:
            with self._batcher.expecting(len(bodies)):
                est = self._line.model.est
                decoding = self._batcher.decoders.submit(_decode, bodies, est)
                images = await asyncio.wait_for(
                    asyncio.wrap_future(decoding), _DECODE_SECONDS
                )
                futures = self._batcher.submit(images)
            found = await asyncio.gather(*map(asyncio.wrap_future, futures))
        except Busy:
            requested.labels("busy").inc(len(bodies))
            raise HTTPException(
                503, "too many images wait; try again", {"Retry-After": "1"}
            ) from None
        except asyncio.TimeoutError:  # its thread goes on, and others wait for it
            requested.labels("refused").inc(len(bodies))
            reason = f"decoding took more than {_DECODE_SECONDS} seconds"
            raise HTTPException(503, reason, {"Retry-After": "10"}) from None
        except (ValueError, OSError) as error:
            requested.labels("refused").inc(len(bodies))
            raise HTTPException(400, printable(error)) from error
        self._line.metrics.measure(time.monotonic() - start, len(bodies))
        with_map = "map" in request.query_params
        answers = []
        for est, own in found:
            answer = describe_result(own, est)
            requested.labels(answer["verdict"]).inc()
            if with_map:
                png = await run_in_threadpool(encode_grey, own["maps"], est)
                answer["map"] = base64.b64encode(png).decode("ascii")
            answers.append(answer)
        return JSONResponse({"images": answers})

    def send_state(self, request):
        line, now = self._line, time.time()
        alarms, signals = self._store.count_waiting()
        model = line.model
        return JSONResponse(
            {
                "run": self._run,
                "revision": self._store.revision,
                "version": __version__,
                "has_token": self._sessions is not None,
                "model": {
                    "file": printable(line.path),
                    "digest": model.digest,
                    "n_images": len(model.est.training_scores_),
                    "threshold": float(model.est.offset_),
                    "kinds": [printable(x) for x in model.est.defect_kinds_],
                },
                "counts": self._store.count(),
                "waiting": alarms,
                "signals": signals,
                "said": self._store.count_said(),
                "trial": self._desk.describe_trial(),
                "trouble": line.trouble,
                "spans": self._describe_spans(now),
            }
        )

    def _describe_spans(self, now):
        """Return what is plotted, kept for some seconds however many pages ask."""
        made, spans = self._spans
        if spans is None or not made <= now < made + _SPAN_SECONDS:
            spans = {span: self._describe_span(span, now) for span in SPANS}
            self._spans = now, spans
        return spans

    def _describe_span(self, span, now):
        seconds, length = SPANS[span]
        start = (now - seconds) // length * length + length
        n = seconds // length
        images, alarms, means = [0] * n, [0] * n, [None] * n
        for i, n_images, n_alarms, mean in self._store.list_buckets(start, length):
            if 0 <= i < n:
                images[i], alarms[i], means[i] = n_images, n_alarms, mean
        return {
            "start": start,
            "length": length,
            "images": images,
            "alarms": alarms,
            "means": means,
            "drift": self._line.find_drift(span),
        }

    def list_images(self, request):
        only = request.query_params.get("only") or None
        if only not in (None, "abnormal", "waiting", "said"):
            raise HTTPException(400, "only must be abnormal, waiting or said")
        before = _number(request, "before")
        return JSONResponse(_show_all(self._store.list_images(before, only)))

    def list_changes(self, request):
        since = _number(request, "since") or 0
        return JSONResponse(_show_all(self._store.list_changes(since)))

    def send_image(self, request):
        number = _path_number(request)
        image = self._store.find(number)
        if image is None:
            raise HTTPException(404, "there is no such image")
        details = self._store.read_details(image)
        return JSONResponse(_show(image) | details)

    def send_picture(self, request):
        digest, name = (request.path_params[x] for x in ("digest", "name"))
        picture = self._store.read_picture(_path_number(request), digest, name)
        if picture is None:
            raise HTTPException(404, "there is no such picture")
        return Response(
            picture, headers={"Cache-Control": _YEAR}, media_type="image/jpeg"
        )

    def send_original(self, request):
        """Send the file of an image as it was inspected, or say that it has gone."""
        image = self._store.find(_path_number(request))
        if image is None or image["digest"] is None:
            raise HTTPException(404, "there is no such image")
        try:
            body = read_unchanged(image["file"], image["digest"])
        except OSError as error:
            raise HTTPException(404, printable(error)) from error
        kind = mimetypes.guess_type(image["file"])[0] or ""
        kind = kind if kind.startswith("image/") else "application/octet-stream"
        return Response(body, headers={"Cache-Control": "no-cache"}, media_type=kind)

    def list_history(self, request):
        history, model = self._desk.history, self._line.model.digest
        return JSONResponse(
            {
                "entries": history.list_entries()[::-1][:200],
                "model": model,
                "former": history.find_former(model),
            }
        )

    async def see(self, request):
        content = await _read_json(request)
        numbers = content.get("images")
        if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
            raise HTTPException(400, "images must be a list of numbers")
        n_seen = await run_in_threadpool(self._store.see, numbers, _who(content))
        return JSONResponse({"seen": n_seen})

    async def say(self, request):
        content = await _read_json(request)
        number, said = content.get("image"), content.get("said")
        if not _is_number(number) or not isinstance(said, dict | None):
            raise HTTPException(400, "image must be a number, said an object or null")
        await run_in_threadpool(self._desk.say, number, said, _who(content))
        return JSONResponse({"image": number})

    async def start_trial(self, request):
        who = _who(await _read_json(request))
        number = await run_in_threadpool(self._desk.start_trial, who)
        return JSONResponse({"trial": number})

    async def drop_trial(self, request):
        await _read_json(request)
        await run_in_threadpool(self._desk.drop_trial)
        return JSONResponse({})

    async def apply(self, request):
        content = await _read_json(request)
        arguments = content.get("trial"), _who(content)
        return JSONResponse(await _change(self._desk.apply, *arguments))

    async def restore(self, request):
        content = await _read_json(request)
        digest = content.get("model")
        if not isinstance(digest, str):
            raise HTTPException(400, "model must be the digest of a former model")
        return JSONResponse(await _change(self._desk.restore, digest, _who(content)))


def _show_login(message="", status=200):
    page = _read_own("login.html").replace("<!-- message -->", message)
    return HTMLResponse(page, status)


async def _change(function, *arguments):
    """Change the model; what is in the way, as a lock or a damaged file, is said."""
    try:
        return await run_in_threadpool(function, *arguments)
    except OSError as error:
        raise HTTPException(409, printable(describe_cause(error))) from error


@functools.cache
def _read_own(name, package="skpatchsvdd._cli.serve"):
    return files(package).joinpath(name).read_text("utf-8")


def _number(request, name):
    text = request.query_params.get(name)
    if text is None:
        return None
    if not re.fullmatch(_DIGITS, text):
        raise HTTPException(400, f"{name} must be a number")
    return int(text)


def _path_number(request):
    text = request.path_params["number"]
    return int(text) if re.fullmatch(_DIGITS, text) else -1  # no image


def _is_number(x):
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**62


def _who(content):
    """Return the name that somebody gives, as one short line."""
    who = content.get("who")
    return printable(who.strip())[:_LONGEST_NAME] if isinstance(who, str) else None


def _show(image):
    """Return what the page may know of an image: no path but its name.

    The address of its pictures names what they show, so that browsers may keep them.
    """
    name = printable(os.path.basename(image.pop("file")))
    image.pop("digest", None)
    pictures = image["pictures"] and f"/images/{image['id']}/{image['pictures']}"
    return image | {"name": name, "pictures": pictures}


def _show_all(images):
    return {"images": [_show(x) for x in images]}


async def _read_json(request):
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "Content-Type must be application/json")
    body = await request.body()
    try:
        if len(body) > _MOST_JSON:
            raise ValueError
        content = json.loads(body)
        if not isinstance(content, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body must be a JSON object") from None
    return content


async def _read_images(request):
    """Return the bytes of the images of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        return [await request.body()]
    async with request.form(max_files=_MOST_IMAGES, max_fields=1) as form:
        parts = [x for _, x in form.multi_items() if not isinstance(x, str)]
        if not parts:
            raise HTTPException(400, "there is no file in the form")
        return [await x.read() for x in parts]


def _decode(bodies, est):
    """Return images as arrays, unless all of a request have too many pixels.

    As among files, grey ones become coloured where the model takes colours.
    """
    names = [f"image {i}" for i in range(len(bodies))]
    names = names if len(bodies) > 1 else ["the image"]
    shapes = list(map(read_shape, bodies, names))
    n_pixels = sum(height * width for height, width, _ in shapes)
    if n_pixels > (limit := find_max_pixels() // _TIMES_LESS):
        raise ValueError(
            f"{n_pixels:,} pixels came at a time, more than the limit of {limit:,}. "
            "Send fewer or smaller images, or start the server with a larger "
            "--max-pixels, of which that is a third."
        )
    images, n_channels = [], est.inspected_shape_[2]
    for body, name, shape in zip(bodies, names, shapes, strict=True):
        if reason := find_misfit(name, shape, est):
            raise ValueError(reason)
        image = np.atleast_3d(read_bytes(body, name))
        images.append(np.broadcast_to(image, (*image.shape[:2], n_channels)))
    return images
