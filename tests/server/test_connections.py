"""What a client may take to send its request: bytes, seconds, and no bytes that are no HTTP."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import httpx
import pytest
from server.fakes import Harness, async_test, listening, make_harness

from everbatch.server.connections import MAX_HEAD_BYTES, ClientConnection

COMPLETIONS = "/v1/completions"
BODY = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
HEAD = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n".encode()
SIZE = b"content-length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Harness, str, int]]:
    harness = make_harness()
    async with listening(harness) as url:
        yield harness, url, int(url.rpartition(":")[2])


async def sent(port: int, *pieces: bytes) -> bytes:
    """Send bytes and give all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def status_and_code(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nx-request-id: req-" in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


async def assert_serves(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.post(COMPLETIONS, json={"prompt": "a"})).status_code == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        HEAD + CHUNKED + b"zz\r\n",
    ],
)
def test_what_is_no_http_gets_an_error_with_a_body(garbage: bytes) -> None:
    @async_test
    async def scenario() -> None:
        async with served() as (harness, url, port):
            answer = await sent(port, garbage)
            await assert_serves(url)

        assert status_and_code(answer) == (400, "invalid_http")
        harness.assert_all_returned()

    scenario()


@pytest.mark.parametrize("what", [b"x-long: ", b"GET /"])
def test_a_head_that_does_not_end_is_refused_at_its_limit(what: bytes) -> None:
    @async_test
    async def scenario() -> None:
        start = HEAD + what if what.startswith(b"x") else what
        async with served() as (_, url, port):
            at_limit = MAX_HEAD_BYTES - len(start)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start + b"a" * at_limit)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.2)
            writer.write(b"a")
            answer = await reader.read()
            writer.close()
            await assert_serves(url)

        assert status_and_code(answer) == (431, "head_too_large")

    scenario()


@async_test
async def test_a_head_that_is_too_long_is_refused_though_it_came_at_once() -> None:
    async with served() as (_, url, port):
        long = await sent(port, b"GET /v1/models HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n")
        await assert_serves(url)

    assert status_and_code(long) == (431, "head_too_large")


@async_test
async def test_trailers_and_sizes_of_chunks_without_end_are_refused() -> None:
    trailers = b"".join(b"t%d: %s\r\n" % (number, b"a" * 100) for number in range(2_000))
    async with served() as (harness, url, port):
        whole = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n"
        many = await sent(port, HEAD + CHUNKED + whole, *[trailers] * 5)
        one = await sent(port, HEAD + CHUNKED + whole + b"t: ", *[b"a" * 60_000] * 5)
        in_single_bytes = await sent(
            port, HEAD + CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
        )
        await assert_serves(url)

    for refused in (many, one):
        assert refused == b"" or status_and_code(refused) == (431, "head_too_large")
    assert in_single_bytes.startswith(b"HTTP/1.1 200 ")
    harness.assert_all_returned()


def test_a_connection_over_which_nothing_comes_is_closed_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientConnection, "silent_s", 0.05)

    @async_test
    async def scenario() -> None:
        async with served() as (_, _, port):
            assert await sent(port) == b""

    scenario()


@pytest.mark.parametrize("pieces", [(b"POST /v1",), (HEAD,), (HEAD + SIZE, BODY[:-1])])
def test_a_request_that_is_never_whole_is_told_so(
    pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClientConnection, "head_s", 0.05)
    monkeypatch.setattr(ClientConnection, "request_s", 0.05)

    @async_test
    async def scenario() -> None:
        async with served() as (harness, url, port):
            answer = await sent(port, *pieces)
            await assert_serves(url)

        assert status_and_code(answer) == (408, "request_timeout")
        assert harness.engine.num_live == 0

    scenario()


def test_a_whole_request_may_take_its_time_to_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientConnection, "head_s", 0.05)
    monkeypatch.setattr(ClientConnection, "request_s", 0.05)

    @async_test
    async def scenario() -> None:
        async with served() as (harness, _, port):
            harness.gate.shut()
            asking = asyncio.create_task(sent(port, HEAD + SIZE + BODY))
            await harness.gate.reached()
            # Longer than both limits.
            await asyncio.wait((asking,), timeout=0.2)
            harness.gate.open()
            answer = await asking

        assert answer.startswith(b"HTTP/1.1 200 ")

    scenario()


@async_test
async def test_a_crowd_that_comes_at_once_is_let_in_within_a_few_turns_of_the_loop() -> None:
    async with served() as (_, url, port):
        await assert_serves(url)
        before = len(os.listdir("/proc/self/fd"))
        with ExitStack() as crowd:
            for _ in range(100):
                crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(15):
                await asyncio.sleep(0)
            num_open = len(os.listdir("/proc/self/fd")) - before

    # Both ends of each connection are in this process.
    assert num_open > 190


@async_test
async def test_garbage_after_a_request_does_not_get_into_its_answer() -> None:
    async with served() as (harness, url, port):
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 3 else None
        body = json.dumps({"prompt": "x", "stream": True}).encode()
        head = HEAD.replace(b"connection: close\r\n", b"")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        begun = await reader.readuntil(b"\n\n")
        await harness.gate.reached()
        writer.write(b"\x00\x00\r\n\r\n")
        rest = await reader.read()
        harness.gate.open()
        writer.close()
        await assert_serves(url)

    assert begun.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1" not in rest
    harness.assert_all_returned()
