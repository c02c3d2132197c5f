"""Reads a streamed answer into a record: server-sent events of completions or chat completions.

Belongs here: what an event is, how an answer may end. Not here: HTTP (connection.py). An event is
decoded into typed fields; whatever else it holds is skipped.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from everbatch.loadgen.records import Outcome, Record

MAX_EVENT_BYTES = 1 << 20
MAX_ERROR_BYTES = 1 << 16
MAX_MESSAGE_CHARACTERS = 300

CUT = "stream cut"
NO_STREAM = "no stream"
NO_TOKENS = "no tokens"
NO_CHUNK = "no chunk"
ERROR_EVENT = "error event"
TRY_AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
DEFAULT_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class AnswerReader:
    """Hears one answer. With `cancel_after` the client leaves when so many events had text."""

    def __init__(self, record: Record, cancel_after: int | None = None) -> None:
        self._record = record
        self._cancel_after = cancel_after
        self._partial = b""
        self._retry_after: str | None = None
        self._has_events = False
        self._is_over = False
        """The server said that the answer is whole."""
        self._has_left = False

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        self._record.status = status
        self._retry_after = headers.get("retry-after")

    def received(self, data: bytes, now_ns: int) -> bool:
        """Hear a piece of the body, which came at that time; False: the client leaves."""
        if self._record.status != HTTPStatus.OK:
            self._partial = (self._partial + data)[:MAX_ERROR_BYTES]
            return True
        if self._partial:
            data = self._partial + data
        *lines, self._partial = data.split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and not self._event(line[5:].strip(), now_ns):
                return False
        if len(self._partial) > MAX_EVENT_BYTES:
            self.fail(NO_CHUNK, f"an event has more than {MAX_EVENT_BYTES:,} bytes")
            return False
        return True

    def fail(self, kind: str, message: str) -> None:
        """Note why the request failed; what is known first counts."""
        if self._record.error is None:
            self._record.error = kind
            self._record.message = message[:MAX_MESSAGE_CHARACTERS]

    def cut(self, message: str) -> None:
        """Note that the connection broke, unless all that matters had come."""
        if not self._is_over and self._record.status in (None, HTTPStatus.OK):
            self.fail(CUT, message)

    def leave(self) -> None:
        """Note that the client left."""
        self._has_left = True

    def finish(self, now_ns: int) -> None:
        """Decide how the request ended, once nothing comes any more."""
        record = self._record
        record.end_ns = now_ns
        if self._has_left:
            record.outcome = Outcome.CANCELLED
            return
        if record.error is None and not self._is_over:
            self.fail(*self._problem())
        elif not record.num_output_tokens:
            self.fail(NO_TOKENS, "the answer ended without a token")
        record.outcome = Outcome.COMPLETED if record.error is None else Outcome.FAILED

    def retry_after_s(self) -> float | None:
        """Give how long to wait before the request is sent again; None: that would be no use."""
        if self._record.status not in TRY_AGAIN:
            return None
        try:
            seconds = float(self._retry_after or DEFAULT_RETRY_AFTER_S)
        except ValueError:
            # A date, which HTTP allows too.
            return DEFAULT_RETRY_AFTER_S
        # In this order, "nan" is 0.
        return min(max(0.0, seconds), MAX_RETRY_AFTER_S)

    def _event(self, data: bytes, now_ns: int) -> bool:
        record = self._record
        self._has_events = True
        if data == b"[DONE]":
            self._is_over = True
            return True
        try:
            event = _decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            self.fail(NO_CHUNK, f"{error}: {data[:200].decode(errors='replace')}")
            return False
        if event.error is not None:
            self.fail(ERROR_EVENT, error_text(event.error))
            return False
        if event.usage is not None:
            record.counted_prompt_tokens = event.usage.prompt_tokens
            record.counted_output_tokens = event.usage.completion_tokens
        for choice in event.choices:
            record.last_ns = now_ns
            if _has_text(choice):
                record.token_times.append(now_ns)
            if choice.finish_reason is not None:
                self._is_over = True
        if self._cancel_after is not None and len(record.token_times) >= self._cancel_after:
            self._has_left = not self._is_over
        return not self._has_left

    def _problem(self) -> tuple[str, str]:
        status = self._record.status
        if status is None:
            return CUT, "the connection broke before an answer"
        if status != HTTPStatus.OK:
            return f"http {status}", body_message(self._partial)
        if not self._has_events:
            return NO_STREAM, "the answer holds no event: does the server stream?"
        return CUT, "the stream ended before the answer did"


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.content or delta.reasoning_content or delta.reasoning)


def body_message(body: bytes) -> str:
    """Give what the body of an error says, however it says it."""
    try:
        facts = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body.decode(errors="replace").strip()[:MAX_MESSAGE_CHARACTERS]
    return error_text(facts.get("error", facts) if isinstance(facts, dict) else facts)


def error_text(error: object) -> str:
    """Give the message of OpenAI's error object, or the whole object."""
    if isinstance(error, dict):
        for key in ("message", "detail"):
            if isinstance(error.get(key), str):
                return str(error[key])
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()
