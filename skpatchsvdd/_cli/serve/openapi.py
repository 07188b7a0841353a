"""What programs can ask for, described as OpenAPI."""

from skpatchsvdd._version import __version__


def _answer(text, schema=None, kind="application/json"):
    if schema is None:
        return {"description": text}
    return {"description": text, "content": {kind: {"schema": schema}}}


_BINARY = {"type": "string", "format": "binary"}
_INTEGER = {"type": "integer"}
_REGION = {
    "type": "object",
    "description": "A box in pixels of the image; bottom and right lie outside.",
    "properties": {x: _INTEGER for x in ("top", "left", "bottom", "right", "area")},
}
_IMAGE = {
    "type": "object",
    "properties": {
        "verdict": {"type": "string", "enum": ["normal", "abnormal"]},
        "p_value": {"type": "number", "description": "Small for what is abnormal."},
        "score": {"type": "number", "description": "Low for what is abnormal."},
        "threshold": {"type": "number", "description": "Abnormal is a score below it."},
        "kind": {
            "type": ["string", "null"],
            "description": "The known kind of defect that it resembles.",
        },
        "regions": {"type": "array", "items": _REGION},
        "map": {
            "type": "string",
            "format": "byte",
            "description": "With ?map: a PNG of 16 bits; 10000 is the threshold.",
        },
    },
}
_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}}
OPENAPI = {
    "openapi": "3.1.0",
    "info": {"title": "skpatchsvdd serve", "version": __version__},
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "security": [{"token": []}, {}],
    "paths": {
        "/inspect": {
            "post": {
                "summary": "Inspect an image, or up to 16",
                "parameters": [
                    {
                        "name": "map",
                        "in": "query",
                        "description": "Whether maps are wanted.",
                        "schema": {"type": "boolean"},
                        "allowEmptyValue": True,
                    }
                ],
                "requestBody": {
                    "description": "The bytes of an image file, or a form of files.",
                    "content": {
                        "image/*": {"schema": _BINARY},
                        "application/octet-stream": {"schema": _BINARY},
                        "multipart/form-data": {
                            "schema": {
                                "type": "object",
                                "properties": {
                                    "file": {"type": "array", "items": _BINARY}
                                },
                            }
                        },
                    },
                },
                "responses": {
                    "200": _answer(
                        "What is said of each image, in their order.",
                        {
                            "type": "object",
                            "properties": {
                                "images": {"type": "array", "items": _IMAGE}
                            },
                        },
                    ),
                    "400": _answer("Not an image, or not of the model's kind.", _ERROR),
                    "401": _answer("The token is missing.", _ERROR),
                    "413": _answer("Too many bytes.", _ERROR),
                    "429": _answer("Too many wrong tokens: wait.", _ERROR),
                    "503": _answer("Too many images wait: try again.", _ERROR),
                },
            }
        },
        "/health": {
            "get": {
                "summary": "Whether the server answers",
                "security": [{}],
                "responses": {"200": _answer("It does.", {"type": "object"})},
            }
        },
        "/metrics": {
            "get": {
                "summary": "Counts and seconds, in the format of Prometheus",
                "responses": {
                    "200": _answer("Text.", {"type": "string"}, "text/plain")
                },
            }
        },
    },
}
