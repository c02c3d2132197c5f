"""The id of an HTTP request, which every answer carries back as X-Request-Id.

Belongs here: choosing it and setting the header, and the id of an answer. It is what the client
gave; else the id of the answer, if the request got as far; else one of its own. Installed by the
application.

What the client gave stands in the answer's id, too, so that the event log names it and
`everbatch explain` finds it; a tail of our own makes it unique.
"""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
NUM_UNIQUE = 12
"""Hexadecimal digits of the tail."""
MAX_REQUEST_ID_LENGTH = 128
"""Longer ones are cut: an id goes into headers and logs, and a UUID fits three times."""

_VISIBLE = re.compile(r"[!-~]+")
# A / would look like a sample's id, and the others like parts of a shell's command.
_PLAIN = re.compile(r"[A-Za-z0-9._:-]+")


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


def new_answer_id(request: Request, kind: str) -> str:
    """Make the id of an answer, and note it: it is the request's unless the client gave one.

    KIND-RANDOM, or KIND-GIVEN-RANDOM if what was given is letters, digits, ".", "_", ":" and "-".
    """
    given = _given(request.scope)
    if given is not None and _PLAIN.fullmatch(given):
        answer_id = f"{kind}-{given}-{uuid.uuid4().hex[:NUM_UNIQUE]}"
    else:
        answer_id = f"{kind}-{uuid.uuid4().hex}"
    request.state.answer_id = answer_id
    return answer_id


def request_id(scope: Scope) -> str:
    """Give the id of the request of an ASGI scope. The visible part of ASCII only."""
    given = _given(scope)
    if given is not None:
        return given
    answer_id = scope.get("state", {}).get("answer_id")
    return str(answer_id) if answer_id is not None else f"req-{uuid.uuid4().hex}"


def _given(scope: Scope) -> str | None:
    given = Headers(scope=scope).get(HEADER, "")[:MAX_REQUEST_ID_LENGTH]
    return given if _VISIBLE.fullmatch(given) else None
