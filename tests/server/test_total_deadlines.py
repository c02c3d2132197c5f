"""max_total_s: how long an answer may take, waiting included."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from server.fakes import Harness, async_test, eventually, in_process, make_harness, reply_to

from everbatch.engine.engine import TokenOutput
from everbatch.server.live import MIN_LIMITS_KEPT, Ending, LiveRequest, LiveRequests

COMPLETIONS = "/v1/completions"
# The harness's clock moves by a millisecond a look.
AT_ONCE = {"max_total_s": 0}
NEVER = {"max_total_s": 86_400}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_has_begun_ends_with_the_text_that_there_is(stream: bool) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness()
        # The engine stands before its fourth pass: three tokens have come.
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 3 else None
        async with in_process(harness) as client:
            body = {"prompt": "x", "stream": stream, "max_total_s": 1}
            asked = asyncio.create_task(client.post(COMPLETIONS, json=body))
            await eventually(lambda: harness.engine.stats.generation_tokens == 3)
            await look_until_ended(harness)
            answer = await asked
            harness.gate.open()
            await eventually(lambda: harness.engine.stats.num_finished != {})
            samples = (await client.get("/metrics")).text

        assert answer.status_code == 200
        choices = _choices(answer, stream)
        assert "".join(choice["text"] for choice in choices) == reply_to(b"x")[:3]
        assert choices[-1]["finish_reason"] == "deadline"
        assert 'request_aborted_total{cause="deadline",model_name="toy"} 1.0' in samples
        assert harness.engine.stats.num_finished == {"abort": 1}
        harness.assert_all_returned()

    run()


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_is_late_is_incomplete(stream: bool) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness()
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 3 else None
        async with in_process(harness) as client:
            body = {"input": "x", "stream": stream, "max_total_s": 1}
            asked = asyncio.create_task(client.post("/v1/responses", json=body))
            await eventually(lambda: harness.engine.stats.generation_tokens == 3)
            await look_until_ended(harness)
            answer = await asked
            harness.gate.open()

        told = answer.json() if not stream else _last_event(answer)["response"]
        assert (told["status"], told["incomplete_details"]) == (
            "incomplete",
            {"reason": "deadline"},
        )
        assert len(told["output"][0]["content"][0]["text"]) == 3

    run()


def _last_event(answer: httpx.Response) -> dict[str, Any]:
    *_, last, rest = answer.text.split("\n\n")
    assert rest == ""
    return json.loads(last.split("\ndata: ")[1])


def _choices(answer: httpx.Response, stream: bool) -> list[dict[str, Any]]:
    if not stream:
        return answer.json()["choices"]
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(one.removeprefix("data: "))["choices"][0] for one in events]


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_has_not_begun_is_told_so(stream: bool) -> None:
    @async_test
    async def run() -> None:
        harness = make_harness(max_num_seqs=1)
        async with in_process(harness) as client:
            harness.gate.shut()
            runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a"} | NEVER))
            await harness.gate.reached()
            body = {"prompt": "b", "stream": stream} | AT_ONCE
            asked = asyncio.create_task(client.post(COMPLETIONS, json=body))
            await eventually(lambda: harness.engine.num_live == 2)
            await look_until_ended(harness, num_left=1)
            late = await asked
            harness.gate.open()
            whole = await runs

        assert late.status_code == 503
        error = late.json()["error"]
        assert error["code"] == "deadline"
        assert "max_total_s, 0, was over: come again later, or raise it" in error["message"]
        assert "retry-after" in late.headers
        assert whole.json()["choices"][0]["text"] == reply_to(b"a")
        harness.assert_all_returned()

    run()


def test_limits_of_those_who_have_ended_are_not_kept_for_their_time() -> None:
    live = LiveRequests()
    most = 0
    for number in range(1_000):
        request = LiveRequest(f"r{number}", 1, arrival_ns=number)
        live.add(request, [(request.id, Nobody())])
        live.limit(request, 86_400)
        most = max(most, live.num_limits)
        if number % 100:
            live.remove(request.samples[request.id])
    late = live.take_overdue(10**15)

    # Eleven live at most: one in a hundred, and the one that has just come.
    assert most <= 2 * 11 + MIN_LIMITS_KEPT
    assert [request.id for request, _ in late] == [f"r{number}" for number in range(0, 1_000, 100)]


class Nobody:
    """Who listens to a request of which nothing comes."""

    def admitted(self, num_cached_tokens: int) -> None: ...

    def push(self, output: TokenOutput, *, is_stop_token: bool) -> None: ...

    def end(self, ending: Ending) -> None: ...


@async_test
async def test_it_may_stand_in_a_header_and_must_agree_with_the_body() -> None:
    async with in_process(make_harness()) as client:

        async def ask(header: str, body: float | None = None) -> httpx.Response:
            asked = {"prompt": "x", "max_tokens": 1, "max_total_s": body}
            return await client.post(COMPLETIONS, json=asked, headers={"X-Max-Total-S": header})

        good = [await ask(header) for header in ("60", "86400", "0.5", "")]
        bad = [await ask(header) for header in ("-1", "86401", "soon")]
        agrees, differs = await ask("60", 60), await ask("60", 61)
        far = await client.post(COMPLETIONS, json={"prompt": "x", "max_total_s": 86_401})

    assert {answer.status_code for answer in (*good, agrees)} == {200}
    assert {answer.status_code for answer in (*bad, differs, far)} == {400}
    assert differs.json()["error"]["param"] == "max_total_s"
    assert "max_total_s must lie in [0, 86400]" in far.json()["error"]["message"]


async def look_until_ended(harness: Harness, num_left: int = 0) -> None:
    """Do what the application does every now and then, until time has passed."""
    while harness.engine.num_live > num_left:
        harness.engine.look()
        await asyncio.sleep(0)


@async_test
async def test_time_passes_while_steps_run_without_anybody_looking() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        # About four looks at the clock a step: the answer has 70 tokens.
        body = {"prompt": "x", "max_total_s": 0.1}
        answer = await client.post(COMPLETIONS, json=body)

    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "deadline"
    assert 0 < len(choice["text"]) < len(reply_to(b"x"))


@async_test
async def test_an_end_in_time_is_not_touched_later() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x", "max_total_s": 1})
        for _ in range(1_100):
            harness.engine.look()
        samples = (await client.get("/metrics")).text

    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert 'request_aborted_total{cause="deadline",model_name="toy"} 0.0' in samples


@async_test
async def test_priority_may_stand_in_a_header() -> None:
    async with in_process(make_harness(policy="priority")) as client:

        async def ask(header: str, body: int | None = None) -> httpx.Response:
            asked = {"prompt": "x", "max_tokens": 1, "priority": body}
            return await client.post(COMPLETIONS, json=asked, headers={"X-Priority": header})

        good = [await ask("5"), await ask("-5", -5), await ask("")]
        bad = [await ask("high"), await ask("3000000000"), await ask("5", 0)]

    assert {answer.status_code for answer in good} == {200}
    assert {answer.status_code for answer in bad} == {400}
