"""A client that does not read its stream is cut at the limit; the engine goes on without it."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from server.fakes import Harness, async_test, eventually, listening, make_harness, reply_to

from everbatch.server.channel import Channel

COMPLETIONS = "/v1/completions"
LIMIT = 4_096
ENDLESS = {"prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 400}


class Unread:
    """A client's side of one ASGI call: it takes the first `num_read` messages, then no more."""

    def __init__(self, body: dict[str, Any], num_read: int) -> None:
        self._body = json.dumps(body).encode()
        self._left = num_read
        self._asked = False
        self.reads_again = asyncio.Event()
        self.taken: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        if self._asked:
            # It does not leave either.
            await asyncio.Event().wait()
        self._asked = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        if self._left == 0:
            await self.reads_again.wait()
        else:
            self._left -= 1
        self.taken.append(message.get("body", b""))


async def _call(harness: Harness, client: Unread) -> None:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": COMPLETIONS,
        "raw_path": COMPLETIONS.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
    }
    await harness.app(scope, client.receive, client.send)


@async_test
async def test_a_client_that_stops_reading_is_cut_when_its_buffer_is_full() -> None:
    harness = make_harness(settings={"max_client_buffer_bytes": LIMIT})
    async with (
        listening(harness) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as other,
    ):
        client = Unread(ENDLESS, num_read=2)
        call = asyncio.create_task(_call(harness, client))
        await eventually(lambda: harness.engine.stats.num_finished.get("abort") == 1)
        used = harness.engine.stats.kv_cache_usage
        served = await other.post(COMPLETIONS, json={"prompt": "a"})
        samples = (await other.get("/metrics")).text
        client.reads_again.set()
        await call

    assert used == 0
    assert served.json()["choices"][0]["text"] == reply_to(b"a")
    assert 'request_aborted_total{cause="slow_client",model_name="toy"} 1.0' in samples
    text = b"".join(client.taken).decode()
    *_, error, done, rest = text.split("\n\n")
    told = json.loads(error.removeprefix("data: "))["error"]
    assert (told["code"], done, rest) == ("slow_client", "data: [DONE]", "")
    assert "more than 4,096 bytes" in told["message"]
    # What was sent before it stopped, the event that was on its way, and the error.
    assert len(text) < LIMIT
    harness.assert_all_returned()


@async_test
async def test_all_choices_of_a_slow_client_end() -> None:
    harness = make_harness(settings={"max_client_buffer_bytes": LIMIT})
    async with listening(harness):
        client = Unread(ENDLESS | {"prompt": ["x", "y"], "n": 2}, num_read=2)
        call = asyncio.create_task(_call(harness, client))
        await eventually(lambda: harness.engine.num_live == 2)
        await eventually(lambda: harness.engine.num_live == 0)
        client.reads_again.set()
        await call

    harness.assert_all_returned()


@async_test
async def test_an_answer_in_one_piece_has_no_such_limit() -> None:
    harness = make_harness(settings={"max_client_buffer_bytes": 1_024})
    async with listening(harness) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        body = ENDLESS | {"stream": False, "logprobs": 5}
        answer = await client.post(COMPLETIONS, json=body)

    assert answer.status_code == 200
    assert len(answer.content) > 1_024


@pytest.mark.parametrize("n", [1, 4])
def test_what_no_client_could_have_read_yet_is_no_sign_of_a_slow_one(n: int) -> None:
    """The events with which an answer begins repeat what was asked, and may be large."""

    @async_test
    async def run() -> None:
        harness = make_harness(settings={"max_client_buffer_bytes": 1_024})
        # As many tokens as the context takes, and more bytes in JSON than the buffer has.
        text = "\x01" * 400
        async with listening(harness) as url, httpx.AsyncClient(base_url=url) as client:
            echo = {"prompt": text, "echo": True, "n": n, "max_tokens": 1, "stream": True}
            told = {"input": "x", "metadata": {"a": text}, "stream": True}
            answers = [
                await client.post(COMPLETIONS, json=echo),
                await client.post("/v1/responses", json=told | {"max_output_tokens": 1}),
            ]

        for answer in answers:
            assert len(answer.content) > 1_024
            assert "slow_client" not in answer.text

    run()


@pytest.mark.parametrize(("sizes", "overflows"), [((6, 4), False), ((6, 4, 1), True)])
def test_a_channel_is_full_beyond_its_limit(sizes: tuple[int, ...], overflows: bool) -> None:
    called: list[str] = []
    channel = Channel(1, max_bytes=10)
    channel.on_overflow = lambda: called.append("overflow")
    channel.put(b"x" * 100)
    assert len(channel.take()) == 100
    for size in sizes:
        channel.put(b"x" * size)
    channel.put(b"")

    assert called == (["overflow"] if overflows else [])
    assert channel.take() == (b"" if overflows else b"x" * 10)
    assert (channel.error is not None) == overflows


def test_what_was_taken_leaves_room() -> None:
    channel = Channel(1, max_bytes=10)
    channel.take()
    for _ in range(5):
        channel.put(b"x" * 9)
        assert channel.take() == b"x" * 9

    assert channel.error is None
