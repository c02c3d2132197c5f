"""A client may say in a request that it could go on in another protocol; it is answered in this.

Java's HttpClient asks for HTTP/2 so in its first request, its body included.
"""

import json

import pytest
from server.fakes import async_test, listening, make_harness
from server.test_connections import BODY, CHUNKED, COMPLETIONS, SIZE, sent
from server.test_front import STREAM, error_of, exchange, fronted

from everbatch.server.request_parser import RequestParser

POST = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\n".encode()
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"
H2C_LAST = H2C.replace(b"Upgrade, ", b"close, upgrade, ")
WEBSOCKET = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
IN_CHUNKS = CHUNKED + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
PLAIN_LAST = b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n"


def answers_in(received: bytes) -> list[tuple[int, bytes]]:
    """Give the status and the body of each answer that came."""
    found = []
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields[b"content-length"])
        found.append((int(head.split()[1]), received[:length]))
        received = received[length:]
    return found


@pytest.mark.parametrize("wish", [H2C, WEBSOCKET])
@pytest.mark.parametrize("framed", [SIZE + BODY, IN_CHUNKS])
@pytest.mark.parametrize("length", [None, 100, 1])
def test_request_is_answered_body_and_all(
    wish: bytes, framed: bytes, length: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    whole = POST + wish + framed + PLAIN_LAST
    pieces = [whole[at : at + (length or len(whole))] for at in range(0, len(whole), length or 999)]

    @async_test
    async def run() -> None:
        harness = make_harness()
        async with listening(harness) as url:
            received = await sent(int(url.rpartition(":")[2]), *pieces)

        (status, body), (next_status, _) = answers_in(received)
        assert (status, next_status) == (200, 200)
        assert json.loads(body)["usage"]["completion_tokens"] == 2
        harness.assert_all_returned()

    run()
    assert "pgrade" not in caplog.text


@async_test
async def test_each_of_several_requests_may_wish_so_and_the_last_closes() -> None:
    get = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + H2C + b"\r\n"
    async with listening(make_harness()) as url:
        port = int(url.rpartition(":")[2])
        received = await sent(port, get + POST + H2C + SIZE + BODY + POST + H2C_LAST + SIZE + BODY)

    assert [status for status, _ in answers_in(received)] == [200, 200, 200]


@async_test
async def test_a_front_follows_such_requests() -> None:
    async with fronted() as (_, process, port):
        request = POST + H2C + SIZE + BODY
        before = await exchange(port, request)
        process.script = STREAM
        amid = await exchange(port, request)

    assert error_of(before) == (503, "engine_restarts")
    assert process.asked == [request, request]
    assert b'"code":"engine_died"' in amid


def test_listener_is_told_each_part_once() -> None:
    told: list[object] = []

    class Listener:
        def on_message_begin(self) -> None:
            told.append("begin")

        def on_url(self, url: bytes) -> None:
            told.append(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            told.append(name)

        def on_headers_complete(self) -> None:
            told.append((parser.get_method(), parser.should_keep_alive(), parser.should_upgrade()))

        def on_body(self, body: bytes) -> None:
            told.append(body)

        def on_message_complete(self) -> None:
            told.append("complete")

    parser = RequestParser(Listener())
    parser.feed_data(b"PUT /a HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
    parser.feed_data(b"POST /b HTTP/1.1\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")

    assert told == [
        *("begin", b"/a", b"Upgrade", b"Connection", (b"PUT", True, False), "complete"),
        *("begin", b"/b", b"Content-Length", b"Connection", (b"POST", False, False)),
        *(b"x", "complete"),
    ]
