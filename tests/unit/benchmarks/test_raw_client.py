"""The raw client: events are counted however they are cut, and a stream needs a proper end."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from raw_client import stream_all

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
TEXT = b'data: {"choices":[{"text":"a","finish_reason":null}],"usage":null}\n\n'
LAST = b'data: {"choices":[{"text":"","finish_reason":"length"}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


@contextmanager
def answering(pieces: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Answer one request with these pieces, a write each; gives the port and, in time, what was
    asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                asked.append(connection.recv(1 << 16))
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield listening.getsockname()[1], asked
        finally:
            thread.join()


def test_each_event_with_text_has_a_time():
    with answering([HEAD + TEXT, TEXT, TEXT, LAST + USAGE + DONE]) as (port, asked):
        [streamed] = stream_all("127.0.0.1", port, [[7, 8]], 3)

    assert streamed.num_tokens == 3
    assert len(streamed.text_ns) == 3
    assert list(streamed.text_ns) == sorted(streamed.text_ns)
    body = json.loads(asked[0].partition(b"\r\n\r\n")[2])
    assert (body["prompt"], body["max_tokens"], body["stream"]) == ([7, 8], 3, True)


@pytest.mark.parametrize("size", [1, 2, 37, 64])
def test_events_are_the_same_however_they_are_cut(size):
    whole = HEAD + TEXT * 3 + LAST + USAGE + DONE
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]

    with answering(pieces) as (port, _):
        [streamed] = stream_all("127.0.0.1", port, [[7]], 3)

    assert (streamed.num_tokens, len(streamed.text_ns)) == (3, 3)


def test_a_stream_without_usage_is_an_error():
    with (
        answering([HEAD + TEXT, b'data: {"error":{}}']) as (port, _),
        pytest.raises(RuntimeError, match=r"without usage.*error"),
    ):
        stream_all("127.0.0.1", port, [[7]], 3)
