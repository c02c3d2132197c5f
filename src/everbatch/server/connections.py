"""Connections of clients: uvicorn's HTTP protocol, with bounds on what a request may take to come.

Belongs here: heads that do not end, requests that are never whole, bytes that are no HTTP. Not
here: bodies (http_body.py), answers. Installed by the runner.

What is refused here never becomes a request: it has no line in the access log.
"""

import asyncio
import uuid
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from everbatch.server.errors import ApiError
from everbatch.server.request_id import HEADER
from everbatch.server.request_parser import RequestParser

MAX_HEAD_BYTES = 64 << 10
FRAMING_BYTES = 8
"""Of a chunked body, for each of its bytes: what chunks of one byte take."""
MAX_ORIGIN_BYTES = 256


class ClientConnection(HttpToolsProtocol):
    """One client's connection.

    A request's head must have come `head_s` seconds after its first byte, and all of it `request_s`
    seconds after the head. A connection over which nothing comes is closed after `silent_s`.
    """

    silent_s: ClassVar[float] = 75.0
    head_s: ClassVar[float] = 30.0
    request_s: ClassVar[float] = 300.0

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.parser = RequestParser(self)  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self._is_silent = True
        """Whether nothing has come at all."""
        self._num_bytes = 0
        """Of the request that comes, and of them those of its body."""
        self._num_body_bytes = 0

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._timer = self.loop.call_later(self.silent_s, self._end_silence)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_longer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_silent:
            self._is_silent = False
            self._wait_at_most(self.head_s, "the request's head")
        self._num_bytes += len(data)
        super().data_received(data)
        framing = self._num_bytes - self._num_body_bytes
        if framing > MAX_HEAD_BYTES + FRAMING_BYTES * self._num_body_bytes:
            self._refuse_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser does not take; uvicorn calls this."""
        told = "what was sent is no request of HTTP/1.1: see /openapi.json for what is"
        self._refuse(HTTPStatus.BAD_REQUEST, told, "invalid_http")

    # What the parser calls.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._wait_at_most(self.head_s, "the request's head")

    def on_headers_complete(self) -> None:
        # What came at once was not counted yet.
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the parser need not go on")
        self._wait_at_most(self.request_s, "the request's body")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._wait_no_longer()
        self._num_bytes = self._num_body_bytes = 0
        super().on_message_complete()

    def _wait_at_most(self, seconds: float, what: str) -> None:
        self._wait_no_longer()
        self._timer = self.loop.call_later(seconds, self._end_waiting, seconds, what)

    def _wait_no_longer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_silence(self) -> None:
        # Without a word: it would be taken for the answer to what may be on its way.
        self._timer = None
        self.transport.close()

    def _end_waiting(self, seconds: float, what: str) -> None:
        self._timer = None
        if self.flow.read_paused:
            # It is we who do not read: an answer before it is being written.
            self._wait_at_most(seconds, what)
            return
        self._refuse(
            HTTPStatus.REQUEST_TIMEOUT,
            f"{what} was not whole after {seconds:g} s: send it faster, over another connection",
            "request_timeout",
        )

    def _refuse_head(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request's head has more than {MAX_HEAD_BYTES:,} bytes: send less",
            "head_too_large",
        )

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer in place of the application, unless it has begun, and close."""
        if self.transport.is_closing():
            return
        self._wait_no_longer()
        has_begun = self.cycle is not None and (
            self.cycle.response_started and not self.cycle.response_complete
        )
        if not has_begun:
            self.transport.write(raw_answer(ApiError(status, message, code=code)))
        self.transport.close()


class RelayedConnection(ClientConnection):
    """A connection that the front made (front.py): its first line says for which client."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._origin: bytes | None = b""

    def data_received(self, data: bytes) -> None:
        if self._origin is not None:
            line, end, data = (self._origin + data).partition(b"\n")
            assert len(line) <= MAX_ORIGIN_BYTES
            if not end:
                self._origin = line
                return
            self._origin = None
            self.client = read_origin(line)
        if data:
            super().data_received(data)


def origin_line(client: tuple[str, int] | None) -> bytes:
    """Give the line that tells a client's address; `read_origin` reads it."""
    host, port = ("", 0) if client is None else client
    return f"{host} {port}\n".encode()


def read_origin(line: bytes) -> tuple[str, int] | None:
    """Read such a line, without its end."""
    host, _, port = line.decode().rpartition(" ")
    return (host, int(port)) if host else None


def raw_answer(error: ApiError) -> bytes:
    """Give an error as the bytes of a whole answer, after which the connection is closed."""
    body = error.body()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        HEADER: f"req-{uuid.uuid4().hex}",
        **error.headers,
        "connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    status = HTTPStatus(error.status)
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n".encode() + body
