"""How far an answer has come, and how one ends that nobody goes on with.

Belongs here: following the bytes of answers, and the last event of a stream. Not here: connections
(front.py).
"""

import re
from http import HTTPStatus

import httptools
import msgspec

from everbatch.server.errors import ApiError

_EVENTS = b"text/event-stream"
_SEQUENCE_NUMBER = re.compile(rb'"sequence_number":\s*(\d+)')


class Answered:
    """Follows the answers on one connection; raises HttpParserError at what is none."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._num_ended = 0
        self.has_begun = False
        """Whether anything of an answer has come that has not ended."""
        self.is_stream = False
        """Whether that is a stream of events."""
        self.is_between_chunks = False
        self.closes = False
        """Whether the last answer that ended was to be the last on its connection."""
        self.last_chunk = b""
        """Of a stream: what has come of it."""

    def feed(self, data: bytes) -> int:
        """Take the next bytes; gives how many answers have ended in them."""
        self._num_ended = 0
        self._parser.feed_data(data)
        return self._num_ended

    # What the parser calls.

    def on_message_begin(self) -> None:
        self.has_begun = True
        self.is_stream = self.is_between_chunks = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.is_stream = value.startswith(_EVENTS)

    def on_headers_complete(self) -> None:
        self.is_between_chunks = True

    def on_chunk_header(self) -> None:
        self.is_between_chunks = False
        self.last_chunk = b""

    def on_body(self, body: bytes) -> None:
        if self.is_stream:
            # A chunk may come in pieces.
            self.last_chunk += body

    def on_chunk_complete(self) -> None:
        self.is_between_chunks = True

    def on_message_complete(self) -> None:
        self.has_begun = False
        # "100 Continue" comes before the answer.
        if self._parser.get_status_code() >= HTTPStatus.OK:
            self._num_ended += 1
            self.closes = not self._parser.should_keep_alive()


def stream_end(path: str, last_chunk: bytes) -> bytes:
    """Give the last chunks of a stream of events whose process has died: an error and the end.

    `last_chunk`: the last one that came; a response's events are numbered.
    """
    error = ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "the engine's process has died amid this answer and is being started again: ask again",
        code="engine_died",
    )
    if path.startswith("/v1/responses"):
        numbers = _SEQUENCE_NUMBER.findall(last_chunk)
        told = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": None,
            "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
        }
        event = b"event: error\ndata: " + msgspec.json.encode(told) + b"\n\n"
    else:
        event = b"data: " + error.body() + b"\n\ndata: [DONE]\n\n"
    return b"%x\r\n" % len(event) + event + b"\r\n0\r\n\r\n"
