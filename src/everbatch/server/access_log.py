"""The access log: one JSON object a request, when its answer has ended.

Belongs here: which facts, and taking them while a request goes through. Not here: where lines are
written (assemble.access_log). Installed by the application if somebody wants the lines.

Prompts are in it only if that was asked for (settings.log_prompts); answers and keys never are.
Probes and Prometheus come every few seconds: they have a line only if they were refused.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everbatch.base.units import NS_PER_S
from everbatch.server.api_keys import OPEN_PATHS
from everbatch.server.request_id import HEADER
from everbatch.server.served import ServerClock

MAX_PATH_LENGTH = 256
_STATE_KEY = "access_facts"
_HEADER = HEADER.encode()

Facts = dict[str, Any]
LateFacts = Callable[[], Facts]


class AccessLogMiddleware:
    """Hands a line to `write_line` for each request, whatever became of it.

    status is null if the client left before there was one. Times are those of the engine's clock.
    """

    def __init__(self, app: ASGIApp, clock: ServerClock, write_line: Callable[[str], None]) -> None:
        self._app = app
        self._clock = clock
        self._write_line = write_line

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        noted: list[Facts | LateFacts] = []
        scope.setdefault("state", {})[_STATE_KEY] = noted
        start_ns = self._clock.now_ns()
        head: dict[str, Any] = {"status": None, "request_id": None}

        async def send_and_look(message: Message) -> None:
            if message["type"] == "http.response.start":
                head["status"] = message["status"]
                ids = [value for name, value in message["headers"] if name == _HEADER]
                head["request_id"] = ids[-1].decode("latin-1") if ids else None
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            client = scope.get("client")
            facts: Facts = {
                "time": self._clock.unix_seconds(),
                **head,
                "client": None if client is None else client[0],
                "method": scope["method"],
                "path": scope["path"][:MAX_PATH_LENGTH],
                "duration_ms": round((self._clock.now_ns() - start_ns) * 1_000 / NS_PER_S, 3),
            }
            for one in noted:
                facts |= one() if callable(one) else one
            if scope["path"] not in OPEN_PATHS or head["status"] != HTTPStatus.OK:
                self._write_line(_line(facts))


def note(scope: Scope, facts: Facts | LateFacts) -> None:
    """Add facts to a request's line; what is callable is called when the answer has ended."""
    noted = scope.get("state", {}).get(_STATE_KEY)
    if noted is not None:
        noted.append(facts)


def _line(facts: Facts) -> str:
    # msgspec refuses half characters, which JSON bodies cannot bring; paths may: they are escaped.
    path = facts["path"].encode("utf-8", "backslashreplace").decode()
    return msgspec.json.encode({**facts, "path": path}).decode()
