"""A process that lives and does not answer: the front speaks for it, and may go on without it."""

import asyncio

from server.fakes import async_test, eventually
from server.fronted import (
    EVENT,
    GET,
    REQUEST,
    RESPONSES_REQUEST,
    STREAM,
    WHOLE,
    error_of,
    exchange,
    fronted,
)


@async_test
async def test_while_the_process_is_silent_the_front_answers_for_it() -> None:
    async with fronted() as (front, process, port):
        process.script = WHOLE + b"first"
        process.stays = True
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await reader.readexactly(len(process.script))
        front.silent_s = 20.5
        new = await exchange(port, REQUEST)
        alive = await exchange(port, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        # In two pieces, so that the front cannot answer before it knows what was asked.
        writer.write(GET[:9])
        await eventually(lambda: len(front.clients) == 1)
        await asyncio.sleep(0.05)
        writer.write(GET[9:])
        known = await reader.read()
        writer.close()
        front.silent_s = None
        process.script = WHOLE + b"again"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        again = await reader.readexactly(len(process.script))
        writer.close()

    assert error_of(new) == error_of(known) == (503, "engine_hangs")
    assert b"has given no sign of life for 20.5 s" in new
    assert b"\r\nRetry-After: 21\r\n" in new
    assert alive.startswith(b"HTTP/1.1 200 ")
    assert again.endswith(b"again")
    assert len(process.asked) == 2


@async_test
async def test_who_is_being_answered_when_the_process_falls_silent_waits_for_it() -> None:
    async with fronted() as (front, process, port):
        process.script = WHOLE
        process.stays = True
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await reader.readexactly(len(WHOLE))
        front.silent_s = 20.5
        process.say(b"hello")
        answer = await reader.readexactly(5)
        writer.close()

    assert answer == b"hello"


@async_test
async def test_a_process_that_is_left_has_died_for_its_clients() -> None:
    async with fronted() as (front, process, port):
        process.script = STREAM + EVENT
        process.stays = True
        streams = asyncio.create_task(exchange(port, REQUEST))
        waits = asyncio.create_task(exchange(port, RESPONSES_REQUEST))
        await eventually(lambda: len(process.asked) == 2)
        await asyncio.sleep(0.05)
        front.leave_process()
        told = [await streams, await waits, await exchange(port, REQUEST)]

    assert all(b'"code":"engine_died"' in one for one in told[:2])
    assert error_of(told[2]) == (503, "engine_restarts")
    assert len(process.asked) == 2
