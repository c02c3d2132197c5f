"""The front ends what a dead process left open as well as it can, and hides nothing else."""

import asyncio
import json
import re
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.fakes import Harness, async_test, eventually, listening, make_harness
from server.fronted import (
    COMPLETIONS,
    EVENT,
    GET,
    LAST,
    REQUEST,
    RESPONSES_REQUEST,
    STREAM,
    WHOLE,
    error_of,
    exchange,
    fronted,
)

from everbatch.server import front as front_module
from everbatch.server.front import Front
from everbatch.server.front_words import Answered, stream_end
from everbatch.server.run import EngineDied, bind_path, bind_socket, serve


@async_test
async def test_who_has_no_answer_yet_gets_one() -> None:
    async with fronted() as (front, process, port):
        front.retry_after_s = 7
        answer = await exchange(port, REQUEST)

    assert error_of(answer) == (503, "engine_restarts")
    assert b"\r\nRetry-After: 7\r\n" in answer
    assert process.asked == [REQUEST]


@async_test
async def test_a_stream_ends_with_an_error_event() -> None:
    async with fronted() as (_, process, port):
        process.script = STREAM + EVENT
        answer = await exchange(port, REQUEST)

    assert answer.startswith(STREAM + EVENT)
    rest = answer.removeprefix(STREAM + EVENT)
    assert b'"code":"engine_died"' in rest
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@async_test
async def test_a_stream_of_a_response_ends_with_a_numbered_event() -> None:
    async with fronted() as (_, process, port):
        process.script = STREAM + EVENT
        answer = await exchange(port, RESPONSES_REQUEST)

    [told] = [line for line in answer.split(b"\n") if b'"type":"error"' in line]
    facts = json.loads(told.removeprefix(b"data: "))
    assert (facts["code"], facts["sequence_number"]) == ("engine_died", 5)
    assert b"event: error\n" in answer
    assert b"[DONE]" not in answer


@pytest.mark.parametrize(
    "script", [WHOLE + b"abc", STREAM + EVENT + EVENT[:10], STREAM + EVENT[:-1], STREAM[:20]]
)
def test_half_an_answer_is_cut_and_never_made_to_look_whole(script: bytes) -> None:
    @async_test
    async def scenario() -> None:
        async with fronted() as (_, process, port):
            process.script = script
            answer = await exchange(port, REQUEST)

        assert answer in (script, b"reset")

    scenario()


@pytest.mark.parametrize(
    "script", [WHOLE + b"abcde", LAST + b"abcde", STREAM + EVENT + b"0\r\n\r\n"]
)
def test_a_whole_answer_is_left_as_it_is(script: bytes) -> None:
    @async_test
    async def scenario() -> None:
        async with fronted() as (front, process, port):
            process.script = script
            asking = asyncio.create_task(exchange(port, REQUEST))
            while not process.asked:
                await asyncio.sleep(0)
            if script.startswith(LAST):
                answer = await asking
            else:
                await asyncio.sleep(0.05)
                front.close()
                answer = await asking

        assert answer == script

    scenario()


@async_test
async def test_an_idle_client_stays_when_the_process_goes_and_meets_the_next_one() -> None:
    async with fronted() as (front, process, port):
        process.script = WHOLE + b"first"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        first = await reader.readexactly(len(process.script))
        front.is_up = False
        front.is_up = True
        process.script = WHOLE + b"again"
        writer.write(GET)
        again = await reader.readexactly(len(process.script))
        writer.close()

    assert (first[-5:], again[-5:]) == (b"first", b"again")
    assert len(process.origins) == 2


@async_test
async def test_while_nobody_serves_the_front_answers() -> None:
    async with fronted(is_up=False) as (front, process, port):
        refused = await exchange(port, REQUEST)
        in_pieces = await exchange(port, REQUEST[:20], REQUEST[20:])
        alive = await exchange(port, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        garbage = await exchange(port, b"\x00\x01\x02\r\n\r\n")
        front.is_stopping = True
        stopping = await exchange(port, GET)

    assert error_of(refused) == error_of(in_pieces) == (503, "engine_restarts")
    assert error_of(garbage) == (503, "engine_restarts")
    assert alive.startswith(b"HTTP/1.1 200 ")
    assert error_of(stopping) == (503, "shutting_down")
    assert process.origins == []


@async_test
async def test_a_client_that_came_before_the_process_was_back_is_served_by_it() -> None:
    async with fronted(is_up=False) as (front, process, port):
        process.script = WHOLE + b"hello"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not front.clients:
            await asyncio.sleep(0)
        front.is_up = True
        writer.write(GET)
        answer = await reader.readexactly(len(process.script))
        writer.close()

    assert answer == process.script


def test_who_says_nothing_while_nobody_serves_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "SILENT_S", 0.01)

    @async_test
    async def scenario() -> None:
        async with fronted(is_up=False) as (front, _, port):
            assert await exchange(port) in (b"", b"reset")
            assert not front.clients

    scenario()


@async_test
async def test_the_process_learns_whose_a_connection_is() -> None:
    async with fronted() as (_, process, port):
        process.script = LAST + b"abcde"
        await exchange(port, GET)

    [origin] = process.origins
    assert origin is not None
    assert origin[0] == "127.0.0.1"


@asynccontextmanager
async def real_server_behind(
    scheduler: dict[str, int] | None = None, **settings: Any
) -> AsyncIterator[tuple[Harness, str]]:
    """A front before a whole server, which stops when the front is gone; gives the address."""
    harness = make_harness(logs_access=True, settings=settings, **(scheduler or {}))
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "s")
        front = Front(path)
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            harness.server = asyncio.create_task(
                serve(harness.app, harness.engine, bind_path(path), 5.0, ready.set, theirs)
            )
            await ready.wait()
            front.is_up = True
            listening_socket = bind_socket("127.0.0.1", 0)
            # What is accepted has it, too: little is lost sight of between front and client.
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            accepting = await loop.create_server(front.new_client, sock=listening_socket)
            async with accepting:
                port = accepting.sockets[0].getsockname()[1]
                yield harness, f"http://127.0.0.1:{port}"
                front.close()
            ours.close()
            harness.gate.open()
            await harness.server


@async_test
async def test_a_server_behind_a_front_serves_as_one_without() -> None:
    bodies = [{"prompt": "x", "stream": stream, "n": n} for stream in (True, False) for n in (1, 3)]
    async with real_server_behind() as (harness, url), httpx.AsyncClient(base_url=url) as client:
        behind = [await client.post(COMPLETIONS, json=body) for body in bodies]
        lines = [json.loads(line) for line in harness.access]
    plain = make_harness()
    async with listening(plain) as url, httpx.AsyncClient(base_url=url) as client:
        alone = [await client.post(COMPLETIONS, json=body) for body in bodies]

    assert [texts_of(one) for one in behind] == [texts_of(one) for one in alone]
    assert {line["client"] for line in lines} == {"127.0.0.1"}
    harness.assert_all_returned()


@async_test
async def test_a_client_that_leaves_is_seen_through_the_front() -> None:
    async with real_server_behind() as (harness, url):
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 2 else None
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as client,
            client.stream("POST", COMPLETIONS, json={"prompt": "x", "stream": True}) as response,
        ):
            await anext(response.aiter_bytes())
        await eventually(lambda: harness.engine.num_live == 0)
        harness.gate.open()

    harness.assert_all_returned()


@pytest.mark.full
@async_test
async def test_a_slow_reader_is_cut_through_the_front() -> None:
    endless = {"prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 200_000}
    async with real_server_behind(
        scheduler={"max_model_len": 250_000, "num_blocks": 20_000}, max_client_buffer_bytes=4_096
    ) as (harness, url):
        body = json.dumps(endless).encode()
        connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader, writer = await asyncio.open_connection(sock=connection, limit=1_024)
        size = len(body)
        head = f"POST {COMPLETIONS} HTTP/1.0\r\ncontent-length: {size}\r\n\r\n"
        writer.write(head.encode() + body)
        # Nobody reads: first the system's buffers fill, then ours.
        await eventually(lambda: harness.engine.stats.num_finished.get("abort") == 1)
        rest = await reader.read()
        writer.close()

    assert b'"code":"slow_client"' in rest
    harness.assert_all_returned()


@async_test
async def test_a_server_whose_front_is_gone_stops_at_once() -> None:
    async with real_server_behind() as (harness, url), httpx.AsyncClient(base_url=url) as client:
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 2 else None
        asking = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
        await harness.gate.reached()
    with pytest.raises(httpx.TransportError):
        await asking

    assert harness.engine.state.value == "stopped"


@async_test
async def test_a_process_whose_engine_has_died_ends_when_all_are_told() -> None:
    with pytest.raises(EngineDied):
        async with (
            real_server_behind() as (harness, url),
            httpx.AsyncClient(base_url=url) as client,
        ):
            harness.executor.before_pass = _raise
            answer = await client.post(COMPLETIONS, json={"prompt": "x"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
            assert harness.server is not None
            await asyncio.wait((harness.server,))


def _raise(number: int) -> None:
    raise KeyError("a bug")


def texts_of(answer: httpx.Response) -> list[str]:
    """Give what an answer says without what is new each time."""
    facts = re.sub(r'"(id|created)":("[^"]*"|\d+)', "", answer.text)
    return sorted(facts.split("\n\n"))


@pytest.mark.parametrize("cut", [0, 40, 90])
def test_number_of_the_last_event_is_known_however_its_chunk_came(cut: int) -> None:
    answered = Answered()
    answered.feed(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    event = b'data: {"sequence_number":7,"delta":"' + b"a" * 100 + b'"}\n\n'
    chunk = b"%x\r\n" % len(event) + event + b"\r\n"
    for piece in (chunk[:cut], chunk[cut:]):
        answered.feed(piece)

    assert answered.is_between_chunks
    assert b'"sequence_number":8' in stream_end("/v1/responses", answered.last_chunk)
