"""One client's connection, and what may come over it: exactly one answer to each request.

`Answer` hears an answer piece by piece and holds it against the rules: one status, one end for each
choice, one last line, nothing after it. What breaks a rule is a `fault`, in words.
"""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

import httptools

SHOWN = 200


@dataclass
class Answer:
    """What came for one request. `leave_after`: its client leaves after so many events."""

    num_choices: int = 1
    leave_after: int | None = None
    status: int = 0
    is_stream: bool = False
    retry_after: str | None = None
    body: bytes = b""
    num_events: int = 0
    reasons: Counter[int] = field(default_factory=Counter)
    """How often each choice has ended."""
    ends: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    num_done: int = 0
    fault: str | None = None

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if self.status:
            self.blame(f"a second status, {status}, after {self.status}")
        self.status = status
        self.is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        self.retry_after = headers.get(b"retry-after", b"").decode() or None

    def piece(self, data: bytes) -> bool:
        """Hear a piece of the body; False: the client has had enough."""
        self.body += data
        if not self.is_stream:
            return True
        *events, self.body = self.body.split(b"\n\n")
        for event in events:
            self._event(event)
        return self.leave_after is None or self.num_events < self.leave_after

    def end(self) -> None:
        """The answer is over, says HTTP: hold it against the rules."""
        if self.is_stream:
            self._check_stream()
        elif self.status == 200:
            self._check_whole()
        else:
            self._check_error()

    def blame(self, fault: str) -> None:
        self.fault = self.fault or fault

    @property
    def outcome(self) -> str:
        """Name how it ended: by the server's own word."""
        if self.fault is not None:
            return "fault"
        if self.errors:
            return f"error event {self.errors[0]}" if self.is_stream else self._coded()
        return "answered, " + "+".join(sorted(set(self.ends)))

    def _coded(self) -> str:
        return f"{self.status} {self.errors[0]}"

    def _event(self, event: bytes) -> None:
        if self.num_done:
            self.blame(f"an event after the end: {event[:SHOWN]!r}")
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            self.num_done += 1
            return
        self.num_events += 1
        # Most events are a token: only what ends something is looked into.
        if b'"finish_reason":null' in data or b'"choices":[]' in data:
            return
        try:
            facts = json.loads(data)
        except ValueError:
            self.blame(f"an event that is no JSON: {event[:SHOWN]!r}")
            return
        if "error" in facts:
            self.errors.append(facts["error"]["code"])
        for choice in facts.get("choices", ()):
            if choice["finish_reason"] is not None:
                self._ended(choice)

    def _ended(self, choice: dict[str, object]) -> None:
        self.reasons[int(str(choice["index"]))] += 1
        self.ends.append(str(choice["finish_reason"]))

    def _check_stream(self) -> None:
        if self.body or self.num_done != 1 or len(self.errors) > 1:
            self.blame(
                f"a stream with {self.num_done} last lines, {len(self.errors)} errors and the rest "
                f"{self.body[:SHOWN]!r}"
            )
        self._check_ends()

    def _check_ends(self) -> None:
        wanted = {index: 1 for index in range(self.num_choices)}
        is_cut = bool(self.errors) and all(times == 1 for times in self.reasons.values())
        if dict(self.reasons) != wanted and not is_cut:
            self.blame(f"choices ended {dict(self.reasons)} times, errors {self.errors}")

    def _check_whole(self) -> None:
        try:
            for choice in json.loads(self.body)["choices"]:
                self._ended(choice)
        except (ValueError, KeyError, TypeError):
            self.blame(f"status 200 with {self.body[:SHOWN]!r}")
        self._check_ends()

    def _check_error(self) -> None:
        try:
            self.errors.append(json.loads(self.body)["error"]["code"])
        except (ValueError, KeyError, TypeError):
            self.blame(f"status {self.status} with {self.body[:SHOWN]!r}")
        if self.status in (429, 503) and not (self.retry_after or "").isdigit():
            self.blame(f"status {self.status} without Retry-After")


class Cut(Exception):
    """The connection was closed before the answer was whole."""


class Wire(asyncio.Protocol):
    """A connection; one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.is_open = False
        self.used_s = time.monotonic()
        self.num_unasked = 0
        """Bytes that came when nothing had been asked."""
        self._answer: Answer | None = None
        self._done: asyncio.Future[bool] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._parser = httptools.HttpResponseParser(self)

    async def ask(self, request: bytes, answer: Answer) -> bool:
        """Send, and hear the answer to its end; False: the client has had enough. Raises Cut."""
        self._answer, self._headers = answer, {}
        self._done = asyncio.get_running_loop().create_future()
        if not self.is_open:
            raise Cut
        self.transport.write(request)
        try:
            return await self._done
        finally:
            self._answer = None

    def close(self) -> None:
        self.is_open = False
        self.transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(Cut())

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.num_unasked += len(data)
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._answer.blame(f"what came is no HTTP ({error}): {data[:SHOWN]!r}")
            self._end(False)

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        assert self._answer is not None
        self._answer.head(self._parser.get_status_code(), self._headers)

    def on_body(self, body: bytes) -> None:
        if self._answer is not None and not self._answer.piece(body):
            self._end(False)

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self._answer.end()
        if not self._parser.should_keep_alive():
            self.is_open = False
        self._end(True)

    def _end(self, is_whole: bool) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(is_whole)


async def connect(port: int) -> Wire:
    _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", port)
    return wire
