"""nginx, set up as in deploy/, before a real server: what comes through, and what does not."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, InternalServerError, RateLimitError
from server.fakes import Harness, async_test, eventually, listening, make_harness, reply_to
from server.nginx import Proxy, nginx_before

COMPLETIONS = "/v1/completions"
ENDLESS = {"prompt": "x", "ignore_eos": True, "max_tokens": 400}
# The configuration lets 100 through at once, and 20 a second.
MANY = 300


@asynccontextmanager
async def served(harness: Harness, directory: Path) -> AsyncIterator[Proxy]:
    async with listening(harness) as url:
        with nginx_before(url, directory) as proxy:
            yield proxy


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Path], Awaitable[None]]], None]:
    """Run a coroutine with a directory of its own."""
    return lambda scenario: async_test(partial(scenario, tmp_path))()


def harness_that_stands_after(num_passes: int, **options: Any) -> Harness:
    harness = make_harness(**options)
    harness.executor.before_pass = lambda number: (
        harness.gate.shut() if number == num_passes else None
    )
    return harness


def text_of(line: str) -> str:
    text: str = json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    return text


def openai_at(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{proxy.base_url}/v1", api_key="x", max_retries=0, http_client=proxy.client()
    )


def test_an_event_comes_while_the_next_one_is_not_there_yet(run):
    harness = harness_that_stands_after(1)

    async def scenario(directory: Path) -> None:
        async with served(harness, directory) as proxy, proxy.client() as client:
            body = {"prompt": "x", "stream": True}
            async with client.stream("POST", COMPLETIONS, json=body) as response:
                lines = response.aiter_lines()
                texts = [text_of(await anext(lines))]
                # The engine stands: what had come was not held back for more.
                await harness.gate.reached()
                harness.gate.open()
                texts += [text_of(line) async for line in lines if line.startswith("data: {")]

        assert response.headers["content-type"].startswith("text/event-stream")
        assert "".join(texts) == reply_to(b"x")

    run(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_nginx_has_left_the_server(run, stream):
    harness = harness_that_stands_after(3)

    async def scenario(directory: Path) -> None:
        async with served(harness, directory) as proxy:
            reader, writer = await asyncio.open_unix_connection(
                proxy.socket, ssl=proxy.trust(), server_hostname=proxy.name
            )
            content = json.dumps(ENDLESS | {"stream": stream}).encode()
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (proxy.name.encode(), len(content), content)
            )
            if stream:
                await reader.readuntil(b"data: ")
            await harness.gate.reached()
            writer.transport.abort()
            await eventually(lambda: harness.engine.num_live == 0)
            harness.gate.open()
            await eventually(lambda: harness.engine.stats.num_finished.get("abort") == 1)

    run(scenario)
    # Its last pass was the one that ran when the client left.
    assert harness.executor.num_passes <= 4
    harness.assert_all_returned()


@pytest.mark.parametrize(
    ("sent", "is_kept"), [("mine-1.a:b", True), ("with space", False), (None, False)]
)
def test_request_ids_go_in_and_out(run, sent, is_kept):
    harness = make_harness(logs_access=True)

    async def scenario(directory: Path) -> None:
        headers = {} if sent is None else {"X-Request-Id": sent}
        async with served(harness, directory) as proxy, proxy.client() as client:
            answer = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
        told = answer.headers["x-request-id"]
        [logged] = map(json.loads, harness.access)
        [at_nginx] = map(json.loads, proxy.access_log.read_text().splitlines())

        assert (told == sent) is is_kept
        assert logged["request_id"] == at_nginx["request_id"] == told
        assert told in answer.json()["id"]
        assert at_nginx["status"] == 200

    run(scenario)


def test_a_server_that_is_away_is_told_in_the_shape_of_its_errors(run):
    async def scenario(directory: Path) -> None:
        async with listening(make_harness()) as url:
            pass
        with nginx_before(url, directory) as proxy:
            async with openai_at(proxy) as client:
                with pytest.raises(InternalServerError) as raised:
                    await client.completions.create(model="toy", prompt="x")
        headers = raised.value.response.headers

        assert (raised.value.status_code, raised.value.code) == (503, "unavailable")
        assert (headers["retry-after"], "x-request-id" in headers) == ("5", True)

    run(scenario)


def test_too_many_requests_of_an_address_are_told_in_the_shape_of_errors(run):
    async def scenario(directory: Path) -> None:
        async with served(make_harness(), directory) as proxy, proxy.client() as client:
            answers = [await client.get("/v1/models") for _ in range(MANY)]
            async with openai_at(proxy) as official:
                with pytest.raises(RateLimitError) as raised:
                    for _ in range(MANY):
                        await official.models.list()
        refused = [answer for answer in answers if answer.status_code == 429]

        assert {answer.status_code for answer in answers} == {200, 429}
        assert len(refused) < MANY - 100
        assert raised.value.code == "rate_limited"
        assert raised.value.response.headers["retry-after"] == "1"

    run(scenario)


def test_what_the_server_refuses_comes_through_as_it_is(run):
    async def scenario(directory: Path) -> None:
        harness = make_harness(max_queue_requests=1, max_num_seqs=1)
        async with served(harness, directory) as proxy, proxy.client() as client:
            too_large = await client.post(COMPLETIONS, content=b"x" * (5 << 20))
            unknown = await client.post(COMPLETIONS, json={"prompt": "x", "colour": "red"})
            harness.gate.shut()
            posts = [
                asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
                for _ in range(4)
            ]
            await harness.gate.reached()
            await eventually(lambda: harness.engine.num_live + sum(map(_done, posts)) == 4)
            harness.gate.open()
            answers = await asyncio.gather(*posts)
        full = [answer for answer in answers if answer.status_code == 429]

        assert (too_large.status_code, unknown.status_code) == (413, 400)
        assert too_large.json()["error"]["code"] == "body_too_large"
        assert unknown.json()["error"]["code"] == "unknown_parameter"
        assert len(full) == 2
        assert {one.json()["error"]["code"] for one in full} == {"queue_full"}
        assert all(int(one.headers["retry-after"]) >= 1 for one in full)

    run(scenario)


def _done(task: "asyncio.Task[Any]") -> bool:
    return task.done()


@pytest.mark.parametrize("path", ["/metrics", "/debug/events", "/openapi.json", "/"])
def test_what_is_for_those_who_run_the_server_is_not_shown(run, path):
    async def scenario(directory: Path) -> None:
        async with served(make_harness(), directory) as proxy, proxy.client() as client:
            hidden = await client.get(path)
            ready = await client.get("/ready")

        assert (hidden.status_code, ready.status_code) == (404, 200)

    run(scenario)
