"""Whatever breaks under the server, every client gets exactly one answer and /health tells."""

import asyncio
import json
import logging
from collections.abc import Callable

import httpx
import pytest
from openai import APIError, InternalServerError
from server.fakes import (
    MODEL,
    Harness,
    async_test,
    eventually,
    in_process,
    listening,
    make_harness,
    openai_client,
    reply_to,
)

from everbatch.base.errors import ExecutorError
from everbatch.tokenizer.text_stream import TextStream

COMPLETIONS = "/v1/completions"


def _raise_at(number: int, error: Exception, times: int = 1) -> Callable[[int], None]:
    def before_pass(current: int) -> None:
        if number <= current < number + times:
            raise error

    return before_pass


async def _wait_for_all(harness: Harness, count: int) -> None:
    """Hold the engine before its first pass until `count` requests are live."""
    await eventually(lambda: harness.engine.num_live == count)
    harness.gate.open()


@async_test
async def test_dead_engine_answers_everybody_and_health_turns() -> None:
    harness = make_harness()
    harness.executor.before_pass = _raise_at(1, RuntimeError("secret path /x"))
    async with in_process(harness) as client:
        harness.gate.shut()
        waiting = [
            asyncio.create_task(
                client.post(COMPLETIONS, json={"prompt": f"p{number}", "stream": number % 2 == 0})
            )
            for number in range(12)
        ]
        await _wait_for_all(harness, 12)
        answers = await asyncio.gather(*waiting)
        after = await client.post(COMPLETIONS, json={"prompt": "x"})
        health = await client.get("/health")
        metrics = await client.get("/metrics")

    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (500, "server_error")
        assert "secret" not in error["message"]
    assert (after.status_code, health.status_code) == (503, 503)
    assert after.json()["error"]["code"] == "engine_dead"
    assert 'num_requests_running{model_name="toy"} 0.0' in metrics.text


def _hold_then_raise(harness: Harness, number: int) -> None:
    """Let `number` passes run, hold the next until the gate is opened, then die in it."""

    def before_pass(current: int) -> None:
        if current == number:
            harness.gate.shut()
        elif current > number:
            raise RuntimeError("broken")

    harness.executor.before_pass = before_pass


@async_test
async def test_engine_that_dies_in_the_middle_ends_streams_with_an_error_event() -> None:
    harness = make_harness()
    _hold_then_raise(harness, 4)
    async with openai_client(harness) as client:
        stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
        text = ""
        with pytest.raises(APIError, match="the engine failed"):
            async for chunk in stream:
                text += chunk.choices[0].text
                harness.gate.open()

    assert text == reply_to(b"x")[:4]


@async_test
async def test_error_event_is_followed_by_the_end_of_the_stream() -> None:
    harness = make_harness()
    _hold_then_raise(harness, 1)
    body = {"prompt": "x", "stream": True}
    async with (
        listening(harness) as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", COMPLETIONS, json=body) as response,
    ):
        harness.gate.open()
        text = (await response.aread()).decode()

    _token, error, done, rest = text.split("\n\n")
    assert response.status_code == 200
    assert json.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
    assert (done, rest) == ("data: [DONE]", "")


@async_test
async def test_a_pass_that_fails_once_is_tried_again_and_nobody_notices() -> None:
    harness = make_harness()
    harness.executor.before_pass = _raise_at(2, ExecutorError("out of memory"))
    async with openai_client(harness) as client:
        answer = await client.completions.create(model=MODEL, prompt="x")

    assert answer.choices[0].text == reply_to(b"x")
    assert harness.engine.stats.num_finished == {"stop": 1}
    harness.assert_all_returned()


@async_test
async def test_who_fails_again_alone_gets_an_error_and_the_server_goes_on() -> None:
    harness = make_harness()
    harness.executor.before_pass = _raise_at(2, ExecutorError("out of memory"), times=2)
    async with openai_client(harness) as client:
        with pytest.raises(InternalServerError, match="out of memory"):
            await client.completions.create(model=MODEL, prompt="x")
        answer = await client.completions.create(model=MODEL, prompt="x")

    assert answer.choices[0].text == reply_to(b"x")
    assert harness.engine.stats.num_finished == {"error": 1, "stop": 1}
    harness.assert_all_returned()


def test_a_row_that_fails_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    @async_test
    async def scenario() -> None:
        harness = make_harness()
        harness.executor.failing_prompts = (b"bad",)
        async with in_process(harness) as client:
            bad = await client.post(COMPLETIONS, json={"prompt": "bad"})
            good = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 3})
        assert (bad.status_code, good.status_code) == (500, 200)

    with caplog.at_level(logging.ERROR, "everbatch.server"):
        scenario()

    [record] = caplog.records
    assert record.getMessage().endswith("failed: it was told to fail")


def test_death_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    @async_test
    async def scenario() -> None:
        harness = make_harness()
        harness.executor.before_pass = _raise_at(1, RuntimeError("the cause"))
        async with in_process(harness) as client:
            await client.post(COMPLETIONS, json={"prompt": "x"})

    with caplog.at_level(logging.CRITICAL, "everbatch.server"):
        scenario()

    assert "the engine thread has died" in caplog.text
    assert "RuntimeError: the cause" in caplog.text


def test_token_that_cannot_become_text_ends_its_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    push = TextStream.push

    def broken_push(stream: TextStream, token_id: int, *, ends_request: bool = False) -> object:
        if token_id == "🙂".encode()[-1]:
            raise KeyError("no such byte")
        return push(stream, token_id, ends_request=ends_request)

    @async_test
    async def scenario() -> None:
        harness = make_harness()
        async with in_process(harness) as client:
            bad = await client.post(COMPLETIONS, json={"prompt": "x"})
            good = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 3})
        assert (bad.status_code, good.status_code) == (500, 200)
        assert good.json()["choices"][0]["text"] == reply_to(b"x")[:3]
        harness.assert_all_returned()

    monkeypatch.setattr(TextStream, "push", broken_push)
    scenario()


@async_test
async def test_more_requests_than_may_be_pending_are_told_to_come_back() -> None:
    harness = make_harness(settings={"max_pending_requests": 2})
    async with in_process(harness) as client:
        harness.gate.shut()
        first = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a"}))
        await harness.gate.reached()
        pending = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": ["b", "c"]}))
        await eventually(lambda: harness.engine.num_live == 3)
        refused = await client.post(COMPLETIONS, json={"prompt": "d"})
        harness.gate.open()
        answers = await asyncio.gather(first, pending)

    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "server_overloaded"
    assert [answer.status_code for answer in answers] == [200, 200]
    harness.assert_all_returned()
