"""A client that leaves frees its request, at every moment; the others do not notice."""

import asyncio
import contextlib
import json
from random import Random
from typing import Any

import httpx
import pytest
from server.fakes import (
    REPLY,
    Harness,
    async_test,
    eventually,
    listening,
    make_harness,
    openai_client,
    reply_to,
)

ENDLESS = {"prompt": "x", "ignore_eos": True, "max_tokens": 400}


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = httpx.URL(url)
    return await asyncio.open_connection(parts.host, parts.port)


async def _send(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
    )
    await writer.drain()


async def _leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def _aborted(harness: Harness) -> int:
    return harness.engine.stats.num_finished.get("abort", 0)


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_while_its_request_runs_frees_it(stream: bool) -> None:
    @async_test
    async def scenario() -> None:
        harness = make_harness()
        async with listening(harness) as url:
            # The third pass decodes: the request has said two tokens by then.
            harness.executor.before_pass = lambda number: (
                harness.gate.shut() if number == 2 else None
            )
            _, writer = await _connect(url)
            await _send(writer, ENDLESS | {"stream": stream})
            await harness.gate.reached()
            await _leave(writer)
            await eventually(lambda: harness.engine.num_live == 0)
            harness.gate.open()
            await eventually(lambda: _aborted(harness) == 1)

        # Its last pass was the one that ran when the client left.
        assert harness.executor.num_passes <= 3
        harness.assert_all_returned()

    scenario()


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_while_its_request_waits_never_runs(stream: bool) -> None:
    @async_test
    async def scenario() -> None:
        harness = make_harness()
        async with listening(harness) as url, httpx.AsyncClient(base_url=url) as client:
            harness.gate.shut()
            first = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
            await harness.gate.reached()
            _, writer = await _connect(url)
            await _send(writer, ENDLESS | {"stream": stream})
            await eventually(lambda: harness.engine.num_live == 2)
            await _leave(writer)
            await eventually(lambda: harness.engine.num_live == 1)
            harness.gate.open()
            response = await first

        assert response.json()["choices"][0]["text"] == reply_to(b"a")
        # The engine was in its step all the time: it has never seen the second request.
        assert harness.engine.stats.num_arrived == 1
        harness.assert_all_returned()

    scenario()


@async_test
async def test_client_that_leaves_inside_its_body_is_no_error() -> None:
    harness = make_harness()
    async with listening(harness) as url, httpx.AsyncClient(base_url=url) as client:
        _, writer = await _connect(url)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await _leave(writer)
        response = await client.post("/v1/completions", json={"prompt": "a"})

    assert response.status_code == 200
    assert harness.engine.stats.num_arrived == 1


@async_test
async def test_client_that_leaves_frees_all_its_choices() -> None:
    harness = make_harness()
    async with listening(harness) as url:
        reader, writer = await _connect(url)
        await _send(writer, ENDLESS | {"prompt": ["a", "b", "c"], "stream": True})
        await reader.readuntil(b"data: ")
        await _leave(writer)
        await eventually(lambda: _aborted(harness) == 3)

    harness.assert_all_returned()


@async_test
async def test_sixty_four_streams_at_once_have_their_own_texts() -> None:
    harness = make_harness(max_num_seqs=64, num_blocks=1024)
    prompts = [f"prompt {number}" for number in range(64)]

    async with openai_client(harness) as client:

        async def read(prompt: str) -> str:
            stream = await client.completions.create(model="toy", prompt=prompt, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        texts = await asyncio.gather(*(read(prompt) for prompt in prompts))

    assert texts == [reply_to(prompt.encode()) for prompt in prompts]
    harness.assert_all_returned()


@async_test
async def test_texts_survive_a_pool_that_is_too_small_for_all() -> None:
    # 8 slots of up to 110 tokens want 56 blocks; there are 12.
    harness = make_harness(num_blocks=12)
    prompts = [f"prompt {number}" for number in range(24)]
    async with listening(harness) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        body = {"stream": False, "max_tokens": 150}
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=body | {"prompt": one}) for one in prompts)
        )

    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    assert texts == [reply_to(prompt.encode()) for prompt in prompts]
    assert harness.engine.stats.num_preemptions > 0
    harness.assert_all_returned()


@async_test
async def test_three_hundred_vanishing_clients_leave_nothing_and_disturb_nobody() -> None:
    random = Random(20_240)
    harness = make_harness(max_num_seqs=32, num_blocks=256)
    async with listening(harness) as url:

        async def vanish(number: int) -> None:
            """Send a request and leave: before, between or after any bytes of the answer."""
            reader, writer = await _connect(url)
            body = ENDLESS | {"prompt": f"v{number}", "stream": random.random() < 0.5}
            for _ in range(random.randrange(20)):
                await asyncio.sleep(0)
            await _send(writer, body)
            for _ in range(random.randrange(60)):
                await asyncio.sleep(0)
            if body["stream"] and random.random() < 0.7:
                await reader.read(random.randrange(1, 3_000))
            await _leave(writer)

        async def stay(client: httpx.AsyncClient, number: int) -> str:
            text = ""
            body = {"prompt": f"s{number}", "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["text"]
            return text

        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            stayers = [asyncio.create_task(stay(client, number)) for number in range(30)]
            await asyncio.gather(*(vanish(number) for number in range(300)))
            texts = await asyncio.gather(*stayers)
        await eventually(lambda: harness.engine.num_live == 0)

    assert texts == [reply_to(f"s{number}".encode()) for number in range(30)]
    stats = harness.engine.stats
    assert stats.num_finished["stop"] == 30
    assert stats.num_finished["abort"] > 0
    assert stats.num_arrived == sum(stats.num_finished.values())
    harness.assert_all_returned()


@async_test
async def test_slow_reader_gets_everything_and_delays_nobody() -> None:
    harness = make_harness()
    async with listening(harness) as url, httpx.AsyncClient(base_url=url) as client:
        reader, writer = await _connect(url)
        await _send(writer, ENDLESS | {"stream": True})
        await eventually(lambda: harness.engine.num_live == 1)
        await eventually(lambda: harness.engine.num_live == 0)
        other = await client.post("/v1/completions", json={"prompt": "a"})
        answer = await reader.readuntil(b"data: [DONE]\n\n")
        await _leave(writer)

    assert other.status_code == 200
    events = [json.loads(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: {")]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text.startswith(reply_to(b"x") + "<")
    assert REPLY[10:] in text
