"""What programs can ask for, described as OpenAPI."""

from skpatchsvdd._serve.downloads import FORMATS
from skpatchsvdd._version import __version__


def _describe(properties):
    return {"type": "object", "properties": properties}


def _answer(text, kind="application/json", schema=None):
    return {"description": text, "content": {kind: {"schema": schema or {}}}}


_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_WHY_NOT = _answer("Why not.", schema=_describe({"error": _TEXT}))
_BINARY = _TEXT | {"format": "binary"}
_BOX = _describe(
    {x: {"type": "integer"} for x in ("top", "left", "bottom", "right", "area")}
)
_IMAGE = _describe(
    {
        "verdict": {"enum": ["normal", "abnormal"]},
        "p_value": _NUMBER,
        "score": _NUMBER | {"description": "Abnormal if below the threshold."},
        "threshold": _NUMBER,
        "kind": {"type": ["string", "null"]},
        "regions": {"type": "array", "items": _BOX},
        "note": _TEXT | {"description": "Why the verdict may be worthless, or empty."},
        "map": _TEXT | {"description": "PNG of 16 bits; 10000 is the threshold."},
    }
)
_FORM = _describe({"file": {"type": "array", "items": _BINARY}})
_INSPECT = {
    "summary": "Inspect the bytes of an image file, or a form of up to 16",
    "parameters": [
        {"name": "map", "in": "query", "schema": {}, "allowEmptyValue": True}
    ],
    "requestBody": {
        "content": {
            "image/*": {"schema": _BINARY},
            "multipart/form-data": {"schema": _FORM},
        }
    },
    "responses": {
        "200": _answer(
            "What is said of each image.",
            schema=_describe({"images": {"type": "array", "items": _IMAGE}}),
        ),
        "default": _WHY_NOT,
    },
}
_RANGE = {"type": "array", "items": _NUMBER}
_CHANGE = _describe(
    {
        "threshold": {
            "type": ["number", "null"],
            "description": "A score; null goes by the false alarm rate again.",
        },
        "false_alarm_rate": _NUMBER | {"description": "Instead of a threshold."},
        "who": _TEXT,
    }
)
_CHANGED = _describe(
    {"threshold": _NUMBER, "false_alarm_rate": _NUMBER, "false_alarm_range": _RANGE}
)
_THRESHOLD = {
    "summary": "Change the model's threshold, by a score or a rate of false alarms",
    "requestBody": {"content": {"application/json": {"schema": _CHANGE}}},
    "responses": {
        "200": _answer("The entry of the history.", schema=_CHANGED),
        "default": _WHY_NOT,
    },
}
_HEALTH = {"security": [{}], "responses": {"200": _answer("The server answers.")}}
_METRICS = {"responses": {"200": _answer("For Prometheus.", "text/plain", _TEXT)}}
_TEXTS, _NUMBERS = ("only", "name", "kind"), ("from", "until", "times")
_CHOICE = [{"name": x, "in": "query", "schema": _TEXT} for x in _TEXTS]
_CHOICE += [{"name": x, "in": "query", "schema": _NUMBER} for x in _NUMBERS]
_TABLE = {
    "summary": "The table of what was judged, of images that are chosen",
    "parameters": _CHOICE,
    "responses": {"200": _answer("As results.csv.", "text/csv", _TEXT)},
}
_FORMAT = {"name": "format", "in": "query", "required": True}
_EXPORT = {
    "summary": "Regions of images that are chosen, for other programs",
    "parameters": [_FORMAT | {"schema": {"enum": FORMATS}}, *_CHOICE],
    "responses": {
        "200": _answer("What inspect --export writes.", "application/zip", _BINARY),
        "default": _WHY_NOT,
    },
}
_TRIGGER = {
    "summary": "Inspect the next picture of a source that waits for this",
    "responses": {
        "202": _answer("It will be.", schema=_describe({"triggered": {}})),
        "default": _WHY_NOT,
    },
}
OPENAPI = {
    "openapi": "3.1.0",
    "servers": [{"url": "."}],  # beside this, wherever the line is
    "info": {"title": "skpatchsvdd serve", "version": __version__},
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "security": [{"token": []}, {}],
    "paths": {
        "/inspect": {"post": _INSPECT},
        "/api/threshold": {"post": _THRESHOLD},
        "/trigger": {"post": _TRIGGER},
        "/results.csv": {"get": _TABLE},
        "/export.zip": {"get": _EXPORT},
        "/health": {"get": _HEALTH},
        "/metrics": {"get": _METRICS},
    },
}
