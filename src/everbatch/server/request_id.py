"""The id of an HTTP request, which every answer carries back as X-Request-Id.

Belongs here: choosing it and setting the header. It is what the client gave; else the id of the
answer, if the request got as far; else one of its own. Installed by the application.
"""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
MAX_REQUEST_ID_LENGTH = 128
"""Longer ones are cut: an id goes into headers and logs, and a UUID fits three times."""

_VISIBLE = re.compile(r"[!-~]+")


class RequestIdMiddleware:
    """Sets the header of whatever is answered inside, by a route or by an error handler."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id(scope)
            await send(message)

        await self._app(scope, receive, send_with_id)


def note_answer_id(request: Request, answer_id: str) -> None:
    """Say which id the answer has; it is the request's unless the client gave one."""
    request.state.answer_id = answer_id


def request_id(scope: Scope) -> str:
    """Give the id of the request of an ASGI scope. The visible part of ASCII only."""
    given = Headers(scope=scope).get(HEADER, "")[:MAX_REQUEST_ID_LENGTH]
    if _VISIBLE.fullmatch(given):
        return given
    answer_id = scope.get("state", {}).get("answer_id")
    return str(answer_id) if answer_id is not None else f"req-{uuid.uuid4().hex}"
