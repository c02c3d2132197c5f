"""A client of streamed completions that costs little: one thread, sockets, bytes.

It notes when events with text come and decodes none; a machine that serves and asks at once should
spend its time on serving. Belongs here: requests out, events in. Not here: what is asked for.
"""

import json
import re
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from streams_workload import Streamed

MAX_READ_BYTES = 1 << 16
TIMEOUT_S = 1_200
USAGE = re.compile(rb'"completion_tokens":(\d+)')
END_OF_EVENT = b"\n\n"
# In each event but the last of a choice, which has no text.
TEXT_MARK = b'"finish_reason":null'


def stream_all(
    host: str, port: int, prompts: Sequence[Sequence[int]], num_outputs: int
) -> list[Streamed]:
    """Send all prompts at once, a connection each; give what each stream brought.

    RuntimeError if a stream ends without usage, or nothing comes for long.
    """
    streams = [_Stream(socket.create_connection((host, port))) for _ in prompts]
    with selectors.DefaultSelector() as selector:
        for stream, prompt in zip(streams, prompts, strict=True):
            stream.connection.sendall(_request(host, prompt, num_outputs))
            selector.register(stream.connection, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise RuntimeError(f"no stream brought anything for {TIMEOUT_S} s")
            for key, _ in ready:
                stream = key.data
                if not stream.read():
                    selector.unregister(stream.connection)
                    stream.connection.close()
    return [one.streamed() for one in streams]


@dataclass(slots=True)
class _Stream:
    """One connection, and what has come over it."""

    connection: socket.socket
    _text_ns: list[int] = field(default_factory=list)
    _num_tokens: int | None = None
    """Known with the usage, in the end."""
    _rest: bytes = b""
    """Of an event that has not come whole."""

    def read(self) -> bool:
        """Take what has come; gives whether more may."""
        received = self.connection.recv(MAX_READ_BYTES)
        now_ns = time.perf_counter_ns()
        *events, self._rest = (self._rest + received).split(END_OF_EVENT)
        for event in events:
            if TEXT_MARK in event:
                self._text_ns.append(now_ns)
            elif usage := USAGE.search(event):
                self._num_tokens = int(usage[1])
        return bool(received)

    def streamed(self) -> Streamed:
        if self._num_tokens is None:
            raise RuntimeError(f"a stream ended without usage: {self._rest[-500:]!r}")
        return Streamed(self._num_tokens, self._text_ns)


def _request(host: str, prompt: Sequence[int], num_outputs: int) -> bytes:
    body = json.dumps(
        {
            "prompt": list(prompt),
            "max_tokens": num_outputs,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
