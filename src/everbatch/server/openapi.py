"""The OpenAPI document: which path takes and gives what.

Belongs here: operations and the document around them. Not here: the schemas (openapi_bodies.py,
openapi_answers.py). The routes hand each operation to the framework, the application serves the
document.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from everbatch.server import openapi_bodies as bodies
from everbatch.server.api_keys import OPEN_PATHS
from everbatch.server.openapi_answers import SCHEMAS, STRING, Schema, shown

Operation = dict[str, Any]

_JSON = "application/json"
_EVENTS = "text/event-stream"
# Of each event.
_EVENT: Schema = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": STRING, "event": STRING},
}
_RETRY = {
    "Retry-After": {
        "description": "Seconds until it is worth another try.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_REQUEST_ID = {
    "X-Request-Id": {
        "description": "What the request brought, or the answer's own id.",
        "required": True,
        "schema": STRING,
    }
}
_WORDS = {
    200: "What was asked for",
    400: "A field is wrong, param names it; or it can never be served",
    401: "No API key, or one that is not known here",
    403: "The API key is that of a tenant",
    404: "Another model",
    408: "The body did not come",
    413: "More than --max-body-size",
    415: "A Content-Type other than application/json, or a Content-Encoding",
    429: "As many requests as there may be",
    500: "A step failed on this request alone, or a bug",
    503: "Not now: it stops, hangs, has failed, or a deadline is over",
}
# What a body may meet, and what an answer may, besides.
_OF_BODIES = (400, 401, 404, 408, 413, 415, 500)
_OF_ANSWERS = (*_OF_BODIES, 429, 503)
_SECONDS = {"type": "string", "pattern": r"^([0-9]{1,5}(\.[0-9]{1,9})?)?$"}


def _header(name: str, schema: Schema, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": schema, "description": description}


_ANY_REQUEST = [_header("X-Request-Id", STRING, "Comes back, and stands in the answer's id.")]
_STANDING = [
    *_ANY_REQUEST,
    _header("X-Tenant", {"type": "string", "maxLength": 128}, "In place of tenant."),
    _header(
        "X-Priority", {"type": "string", "pattern": "^(-?[0-9]{1,9})?$"}, "In place of priority."
    ),
    _header("X-Max-Wait-S", _SECONDS, "In place of max_wait_s."),
    _header("X-Max-Total-S", _SECONDS, "In place of max_total_s."),
]


def _responses(statuses: tuple[int, ...], content: dict[str, Schema]) -> dict[str, Any]:
    """Describe an answer with this content, and errors."""
    told: dict[str, Any] = {}
    for status in (200, *statuses):
        own = content if status == 200 else {_JSON: shown("Error")}
        told[str(status)] = {
            "description": _WORDS[status],
            "headers": _REQUEST_ID | (_RETRY if status in (429, 503) else {}),
            "content": {kind: {"schema": schema} for kind, schema in own.items()},
        }
    return told


def _post(
    body: Schema,
    statuses: tuple[int, ...],
    content: dict[str, Schema],
    headers: list[dict[str, Any]],
) -> Operation:
    return {
        "parameters": headers,
        "requestBody": {"required": True, "content": {_JSON: {"schema": body}}},
        "responses": _responses(statuses, content),
    }


def _get(
    content: dict[str, Schema], *statuses: int, parameters: tuple[dict[str, Any], ...] = ()
) -> Operation:
    return {
        "parameters": [*_ANY_REQUEST, *parameters],
        "responses": _responses(statuses, content),
    }


COMPLETIONS = _post(
    bodies.COMPLETIONS, _OF_ANSWERS, {_JSON: shown("Completion"), _EVENTS: _EVENT}, _STANDING
)
CHAT_COMPLETIONS = _post(
    bodies.CHAT_COMPLETIONS,
    _OF_ANSWERS,
    {_JSON: shown("ChatCompletion"), _EVENTS: _EVENT},
    _STANDING,
)
RESPONSES = _post(
    bodies.RESPONSES, _OF_ANSWERS, {_JSON: shown("Response"), _EVENTS: _EVENT}, _STANDING
)
TOKENIZE = _post(bodies.TOKENIZE, _OF_BODIES, {_JSON: shown("Tokens")}, _ANY_REQUEST)
DETOKENIZE = _post(bodies.DETOKENIZE, _OF_BODIES, {_JSON: shown("Text")}, _ANY_REQUEST)
ABORT = _post(bodies.ABORT, (400, 401, 408, 413, 415, 500), {_JSON: shown("Aborted")}, _ANY_REQUEST)
HEALTH = _get({}, 503)
READY = _get({}, 503)
VERSION = _get({_JSON: shown("Version")})
METRICS = _get({"text/plain": STRING})
EVENTS = _get({"application/x-ndjson": STRING}, 401, 403)
MODELS = _get({_JSON: shown("Models")}, 401)
MODEL = _get(
    {_JSON: shown("Model")},
    401,
    404,
    parameters=({"name": "model_id", "in": "path", "required": True, "schema": STRING},),
)


def document(app: FastAPI, *, has_keys: bool) -> dict[str, Any]:
    """Give the document of an application. has_keys: it asks for API keys."""
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    components = made.setdefault("components", {})
    components["schemas"] = SCHEMAS
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in made["paths"].items():
            if path not in OPEN_PATHS:
                for operation in operations.values():
                    operation["security"] = [{"key": []}]
    return made
