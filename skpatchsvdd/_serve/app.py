"""What is served: the live page, what it asks for, and requests of programs."""

import asyncio
import base64
import functools
import json
import math
import mimetypes
import os
import re
import secrets
import threading
import time
from importlib.resources import files
from urllib.parse import parse_qs

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route

from skpatchsvdd._cli import encode_grey, find_misfit, printable
from skpatchsvdd._images import find_max_pixels, read_bytes, read_shape
from skpatchsvdd._report import Notes, read_unchanged
from skpatchsvdd._serve.access import Guard, Sessions
from skpatchsvdd._serve.answers import HANDLERS, RefusedError
from skpatchsvdd._serve.batcher import BusyError
from skpatchsvdd._serve.downloads import FORMATS, MOST_EXPORTED, export, write_table
from skpatchsvdd._serve.line import SPANS, describe_result, describe_threshold
from skpatchsvdd._serve.openapi import OPENAPI
from skpatchsvdd._serve.store import ONLY
from skpatchsvdd._version import __version__

# Images of one request, at most, and bytes of what the page sends.
_MOST_IMAGES, _MOST_JSON = 16, 2**20
_OWN = "common.js", "live.js", "live.css", "station.js"
_STATIC = dict.fromkeys(_OWN, "skpatchsvdd._serve")
_STATIC |= dict.fromkeys(("picture.js", "picture.css"), "skpatchsvdd._report")
_LONGEST_NAME, _DIGITS = 60, r"[0-9]{1,18}"
# Seconds that the images of a request may take to decode, waiting for others included,
# and how many times more pixels a file of the folder may have than all of them.
_DECODE_SECONDS, _TIMES_LESS = 10, 3
_YEAR = "private, max-age=31536000, immutable"


def make_app(line, reviews, batcher, token=None, hosts=(), max_bytes=2**25):
    """Make the ASGI application of one line alone."""
    sessions = Sessions(token) if token else None
    app = make_line_app(line, reviews, batcher, token, _list_signing_in(sessions))
    return Guard(app, sessions, hosts, max_bytes)


def make_station_app(station, token=None, hosts=(), max_bytes=2**25):
    """Make the ASGI application of a `Station`; see `Station.answer` for its lines."""
    sessions = Sessions(token) if token else None
    routes = [
        Route("/", lambda _: HTMLResponse(_read_text("station.html"))),
        *_list_signing_in(sessions),
        Route("/static/{name}", _send_static),
        Route("/health", _tell_health),
        _route_json("/api/lines", lambda _: station.describe()),
        _route_changes("/api/reload", lambda _: station.reload()),
        Mount("/lines/{name}", app=station.answer),
    ]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    return Guard(app, sessions, hosts, max_bytes)


def _list_signing_in(sessions):
    """Return the routes of the form for the token, where sessions begin and end."""

    async def log_in(request):
        body = (await request.body()).decode("utf-8", "replace")
        token = parse_qs(body).get("token", [""])[0].strip()
        answer = RedirectResponse("/", 303)
        if sessions is None:
            return answer
        try:
            if not sessions.check(token, request.scope):
                return _show_login("This is not the token.", 401)
        except HTTPException as error:  # of too many wrong ones
            return _show_login(f"There were {error.detail}.", error.status_code)
        sessions.begin(request, answer)
        return answer

    async def log_out(request):
        answer = RedirectResponse("/login", 303)
        if sessions is not None:
            sessions.end(request, answer)
        return answer

    return [
        Route("/login", lambda _: _show_login()),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def _show_login(message="", status=200):
    page = _read_text("login.html").replace("<!-- message -->", message)
    return HTMLResponse(page, status)


def make_line_app(line, reviews, batcher, token=None, routes=()):
    """Make what answers about a line, wherever it is mounted, without a guard."""
    page, requests = _Page(line, reviews, bool(token)), _Requests(line, batcher)
    routes = [
        *routes,
        Route("/", lambda _: HTMLResponse(_read_text("live.html"))),
        Route("/static/{name}", _send_static),
        Route("/health", _tell_health),
        Route("/metrics", requests.send_metrics),
        Route("/openapi.json", lambda _: JSONResponse(OPENAPI)),
        Route("/inspect", requests.inspect, methods=["POST"]),
        Route("/source.jpg", page.send_source),
        Route("/trigger", page.pull_trigger, methods=["POST"]),
        Route("/results.csv", page.send_table),
        Route("/export.zip", page.send_export),
        Route("/images/{number}/original", page.send_original),
        Route("/images/{number}/{digest}/{name}", page.send_picture),
        _route_json("/api/state", page.describe_state),
        _route_json("/api/images", page.list_images),
        _route_json("/api/changes", page.list_changes),
        _route_json("/api/images/{number}", page.describe_image),
        _route_json("/api/history", page.list_history),
        _route_changes("/api/seen", page.see),
        _route_changes("/api/say", page.say),
        _route_changes("/api/try", page.start_trial),
        _route_changes("/api/drop", page.drop_trial),
        _route_changes("/api/apply", page.apply),
        _route_changes("/api/restore", page.restore),
        _route_changes("/api/threshold", page.set_threshold),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


def _route_json(path, describe):
    """Return a route that answers with what a function, in a thread, returns."""
    return Route(path, lambda request: JSONResponse(describe(request)))


def _route_changes(path, change):
    """Return a route that calls a function, in a thread, with the JSON it gets."""

    async def answer(request):
        content = await _read_json(request)
        return JSONResponse(await run_in_threadpool(change, content))

    return Route(path, answer, methods=["POST"])


async def _read_json(request):
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "Content-Type must be application/json")
    body = await request.body()
    try:
        content = json.loads(body) if len(body) <= _MOST_JSON else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return content


async def _tell_health(request):  # whatever threads wait for
    return JSONResponse({"status": "ok"})


def _send_static(request):
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404, "there is no such file")
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return Response(_read_text(name, _STATIC[name]), media_type=kind)


@functools.cache
def _read_text(name, package="skpatchsvdd._serve"):
    return files(package).joinpath(name).read_text("utf-8")


class _Requests:
    """What programs ask for: images inspected, and what is counted."""

    def __init__(self, line, batcher):
        self._line, self._batcher = line, batcher

    def send_metrics(self, request):
        text = self._line.metrics.write(self._line, self._batcher.n_waiting)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def inspect(self, request):
        """Inspect the images of a request, beside those of others."""
        start, bodies = time.monotonic(), await _read_images(request)
        requested = self._line.metrics.requested
        try:
            inspected, notes = await self._inspect(bodies)
        except BusyError:
            requested.labels("busy").inc(len(bodies))
            reason = "too many images wait; try again"
            raise HTTPException(503, reason, {"Retry-After": "1"}) from None
        except asyncio.TimeoutError:  # its thread goes on, and others wait for it
            requested.labels("refused").inc(len(bodies))
            reason = f"decoding took more than {_DECODE_SECONDS} seconds"
            raise HTTPException(503, reason, {"Retry-After": "10"}) from None
        except (ValueError, OSError) as error:
            requested.labels("refused").inc(len(bodies))
            raise HTTPException(400, f"{error}") from error
        self._line.metrics.measure(time.monotonic() - start, len(bodies))
        with_map, answers = "map" in request.query_params, []
        for (est, results), note in zip(inspected, notes, strict=True):
            answers.append(describe_result(results, est) | {"note": note})
            requested.labels(answers[-1]["verdict"]).inc()
            if with_map:
                png = await run_in_threadpool(encode_grey, results["maps"], est)
                answers[-1]["map"] = base64.b64encode(png).decode("ascii")
        return JSONResponse({"images": answers})

    async def _inspect(self, bodies):
        """Return the estimator and the results of each image, and its note."""
        with self._batcher.expecting(len(bodies)):
            est = self._line.model.est
            decoding = self._batcher.decoders.submit(_decode, bodies, est)
            images, notes = await asyncio.wait_for(
                asyncio.wrap_future(decoding), _DECODE_SECONDS
            )
            futures = self._batcher.submit(images)
        return await asyncio.gather(*map(asyncio.wrap_future, futures)), notes


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
    """Return images as arrays, and notes, unless a request has too many pixels.

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
    return images, [*map(Notes(est).find, shapes)]


class _Page:
    """What the page asks for, and what people say there; all of it runs in threads."""

    def __init__(self, line, reviews, has_token):
        self._line, self._reviews, self._store = line, reviews, line.store
        self._has_token, self._exporting = has_token, threading.Lock()
        self._run = secrets.token_hex(8)  # of this process: another begins anew

    def describe_state(self, request):
        model, arrivals = self._line.model, self._line.arrivals
        alarms, signals = self._store.count_waiting()
        return {
            "run": self._run,
            "line": self._line.name,
            "revision": self._store.revision,
            "version": __version__,
            "has_token": self._has_token,
            "model": {
                "file": printable(self._line.path),
                "digest": model.digest,
                "n_images": len(model.est.training_scores_),
                **describe_threshold(model.est),
                "kinds": [printable(x) for x in model.est.defect_kinds_],
            },
            "counts": self._store.count(),
            "waiting": alarms,
            "signals": signals,
            "said": self._store.count_said(),
            "trial": self._reviews.describe_trial(),
            "trouble": self._line.trouble,
            "standstill": self._line.standstill,
            "source": arrivals.describe() if arrivals else None,
            "spans": {span: self._line.describe_span(span) for span in SPANS},
        }

    def send_source(self, request):
        """Send the last picture of the source, inspected or not."""
        picture = self._line.arrivals and self._line.arrivals.picture
        if picture is None:
            raise HTTPException(404, "there is no picture of the source")
        return Response(picture, media_type="image/jpeg")

    def pull_trigger(self, request):
        """Let the next frame of the source be inspected."""
        trigger = self._line.arrivals and self._line.arrivals.trigger
        if trigger is None:
            raise RefusedError("this line has no source that waits for a trigger.")
        trigger.pull()
        return JSONResponse({"triggered": True}, 202)

    def list_images(self, request):
        before = _read_number(request, "before")
        images = self._store.list_images(before, _read_choice(request))
        return {"images": [show_image(x, _root(request)) for x in images]}

    def list_changes(self, request):
        since = _read_number(request, "since") or 0
        images = self._store.list_changes(since, _read_choice(request))
        return {"images": [show_image(x, _root(request)) for x in images]}

    def send_table(self, request):
        """Send the table of what was judged, of the images that are chosen."""
        images = self._store.choose(_read_choice(request))
        table = write_table(images, self._store)
        headers = _name_download("results.csv")
        return StreamingResponse(table, headers=headers, media_type="text/csv")

    def send_export(self, request):
        """Send a zip file of regions, of the images that are chosen."""
        kind = request.query_params.get("format")
        if kind not in FORMATS:
            raise HTTPException(400, f"format must be one of {', '.join(FORMATS)}")
        images = self._store.choose(_read_choice(request), limit=MOST_EXPORTED + 1)
        if not self._exporting.acquire(blocking=False):
            raise RefusedError("another export is under way. Try again in a moment.")
        try:
            body = export([*images], self._line, kind)
        finally:
            self._exporting.release()
        headers = _name_download(f"{kind}.zip")
        return Response(body, headers=headers, media_type="application/zip")

    def describe_image(self, request):
        image = self._find(request)
        return show_image(image, _root(request)) | self._store.read_details(image)

    def _find(self, request):
        text = request.path_params["number"]
        image = self._store.find(int(text)) if re.fullmatch(_DIGITS, text) else None
        if image is None:
            raise HTTPException(404, "there is no such image")
        return image

    def send_picture(self, request):
        digest, name = (request.path_params[x] for x in ("digest", "name"))
        image = self._find(request)
        picture = self._store.read_picture(image["id"], digest, name)
        if picture is None:
            raise HTTPException(404, "there is no such picture")
        headers = {"Cache-Control": _YEAR}
        return Response(picture, headers=headers, media_type="image/jpeg")

    def send_original(self, request):
        """Send the file of an image as it was inspected, or say that it has gone."""
        image = self._find(request)
        if image["digest"] is None:
            raise HTTPException(404, "it could not be read when it arrived")
        try:
            body = read_unchanged(image["file"], image["digest"])
        except OSError as error:
            raise HTTPException(404, f"{error}") from error
        kind = mimetypes.guess_type(image["file"])[0] or ""
        kind = kind if kind.startswith("image/") else "application/octet-stream"
        return Response(body, headers={"Cache-Control": "no-cache"}, media_type=kind)

    def list_history(self, request):
        history, model = self._reviews.history, self._line.model.digest
        return {
            "entries": history.list_entries()[::-1][:200],
            "model": model,
            "former": history.find_former(model),
        }

    def see(self, content):
        numbers = content.get("images")
        if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
            raise HTTPException(400, "images must be a list of numbers")
        return {"seen": self._store.see(numbers, _read_who(content))}

    def say(self, content):
        number, said = content.get("image"), content.get("said")
        if not _is_number(number) or not isinstance(said, dict | None):
            raise HTTPException(400, "image must be a number, said an object or null")
        self._reviews.say(number, said, _read_who(content))
        return {"image": number}

    def start_trial(self, content):
        return {"trial": self._reviews.start_trial(_read_who(content))}

    def drop_trial(self, content):
        self._reviews.drop_trial()
        return {}

    def apply(self, content):
        return self._reviews.apply(content.get("trial"), _read_who(content))

    def restore(self, content):
        digest = content.get("model")
        if not isinstance(digest, str):
            raise HTTPException(400, "model must be the digest of a former model")
        return self._reviews.restore(digest, _read_who(content))

    def set_threshold(self, content):
        names = "threshold", "false_alarm_rate"
        given = {x: content[x] for x in names if x in content}
        if len(given) != 1:
            raise HTTPException(
                400,
                "either threshold, a score or null, which goes by the rate again, or "
                "false_alarm_rate must be given",
            )
        return self._reviews.set_threshold(*given.popitem(), _read_who(content))


def _root(request):
    """Return what the addresses of a line begin with: nothing where it is alone."""
    return request.scope.get("root_path", "")


def show_image(image, root=""):
    """Return what the page may know of an image: no path but its name."""
    name = printable(os.path.basename(image["file"]))
    pictures = image["pictures"] and f"{root}/images/{image['id']}/{image['pictures']}"
    known = {x: image[x] for x in image if x not in ("file", "digest", "state")}
    return known | {"name": name, "pictures": pictures}


def _read_number(request, name):
    text = request.query_params.get(name)
    if text is not None and not re.fullmatch(_DIGITS, text):
        raise HTTPException(400, f"{name} must be a number")
    return None if text is None else int(text)


def _read_choice(request):
    """Return by what images are chosen, as `Store.choose` takes it."""
    given = {x: request.query_params.get(x) for x in ("only", "name", "kind")}
    chosen = {x: text for x, text in given.items() if text}
    if chosen.get("only", "abnormal") not in ONLY:
        raise HTTPException(400, f"only must be one of {', '.join(ONLY)}")
    for name in ("from", "until", "times"):
        if text := request.query_params.get(name):
            try:
                chosen[name] = float(text)
            except ValueError:
                chosen[name] = math.nan
            if not math.isfinite(chosen[name]):
                raise HTTPException(400, f"{name} must be a number")
    return chosen


def _name_download(name):
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _is_number(x):
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**62


def _read_who(content):
    """Return the name that somebody gives, as one short line."""
    who = content.get("who")
    return printable(who.strip())[:_LONGEST_NAME] if isinstance(who, str) else None
