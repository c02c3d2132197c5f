"""Retry-After is measured: how fast the queue empties, and a place for each who was refused."""

import asyncio

import httpx
import pytest
from server.fakes import async_test, eventually, in_process, make_harness

from everbatch.base.units import NS_PER_S
from everbatch.server.service_rate import MAX_RETRY_S, MIN_RETRY_S, WINDOW, ServiceRate

COMPLETIONS = "/v1/completions"


def seconds(number: float) -> int:
    return int(number * NS_PER_S)


def rate_of(num_left: int, over_s: float, tokens_each: int = 10) -> ServiceRate:
    """A queue that let so many go in that time, one after another, and still has some."""
    rate = ServiceRate()
    rate.fold(0, num_left=0, num_tokens=0, is_waiting=True)
    for number in range(1, num_left + 1):
        now_ns = seconds(over_s * number / num_left)
        rate.fold(now_ns, num_left=1, num_tokens=tokens_each, is_waiting=True)
    return rate


@pytest.mark.parametrize(
    ("num_left", "over_s", "wait_s"), [(10, 50, 5), (10, 5, 1), (10, 10_000, MAX_RETRY_S)]
)
def test_a_place_comes_as_often_as_one_came_so_far(num_left: int, over_s: float, wait_s: int):
    rate = rate_of(num_left, over_s)

    assert rate.retry_s(seconds(over_s), num_requests=1) == wait_s


def test_a_limit_on_tokens_is_measured_in_tokens() -> None:
    # Ten tokens every four seconds: 25 more take ten.
    assert rate_of(10, 40).retry_s(seconds(40), num_tokens=25) == 10


def test_each_who_is_refused_is_given_a_later_place() -> None:
    rate = rate_of(10, 50)
    now = seconds(50)
    told = [rate.retry_s(now, num_requests=1) for _ in range(15)]
    later = rate.retry_s(now + seconds(40), num_requests=1)

    assert told[:4] == [5, 10, 15, 20]
    assert told[-1] == MAX_RETRY_S
    # What was promised until then has passed; the rest of it is still ahead.
    assert 20 < later < 40


def test_time_without_a_queue_is_not_counted() -> None:
    rate = rate_of(10, 10)
    rate.fold(seconds(11), num_left=1, num_tokens=10, is_waiting=False)
    # An hour in which all were served at once says nothing about a queue.
    for minute in range(60):
        rate.fold(seconds(60 * minute + 60), num_left=1, num_tokens=10, is_waiting=False)
    rate.fold(seconds(3_660), num_left=0, num_tokens=0, is_waiting=True)

    assert rate.retry_s(seconds(3_660), num_requests=1) == 1


def test_nothing_measured_is_told_as_little_and_a_queue_that_stands_as_long_as_it_has() -> None:
    fresh, standing = ServiceRate(), ServiceRate()
    standing.fold(0, num_left=0, num_tokens=0, is_waiting=True)

    assert fresh.retry_s(seconds(5), num_requests=1) == MIN_RETRY_S
    assert standing.retry_s(seconds(17), num_requests=1) == 17


def test_a_change_is_seen_because_the_past_is_forgotten() -> None:
    rate = rate_of(4 * WINDOW, 4 * WINDOW)
    now = seconds(4 * WINDOW)
    for _ in range(4 * WINDOW):
        now += seconds(10)
        rate.fold(now, num_left=1, num_tokens=10, is_waiting=True)

    assert rate.retry_s(now, num_requests=1) in (9, 10)


@async_test
async def test_a_full_queue_tells_places_one_after_another() -> None:
    harness = make_harness(max_num_seqs=1, max_queue_requests=1)
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 1 else None
    async with in_process(harness) as client:
        first = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a"}))
        await harness.gate.reached()
        body = {"prompt": "b", "max_tokens": 1}
        rest = [asyncio.create_task(client.post(COMPLETIONS, json=body)) for _ in range(4)]
        await eventually(lambda: harness.engine.num_live == 5)
        harness.gate.open()
        answers = [await one for one in (first, *rest)]

    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429]
    waits = [int(answer.headers["retry-after"]) for answer in answers[2:]]
    assert waits == sorted(waits)
    assert all(MIN_RETRY_S <= wait <= MAX_RETRY_S for wait in waits)


@async_test
async def test_a_server_has_so_many_under_way_all_together() -> None:
    harness = make_harness(max_num_seqs=1, settings={"max_live_requests": 2})
    async with in_process(harness) as client:

        async def ask(*prompts: str) -> httpx.Response:
            return await client.post(COMPLETIONS, json={"prompt": list(prompts), "max_tokens": 1})

        never = await ask("1", "2", "3")
        harness.gate.shut()
        runs = asyncio.create_task(ask("1", "2"))
        await harness.gate.reached()
        refused = await ask("3")
        harness.gate.open()
        done, again = await runs, await ask("4", "5")

    error = refused.json()["error"]
    assert (never.status_code, refused.status_code, error["code"]) == (400, 429, "server_full")
    assert "2 requests under way, --max-live-requests is 2" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= MAX_RETRY_S
    assert (done.status_code, again.status_code) == (200, 200)
    harness.assert_all_returned()


@async_test
async def test_a_full_server_refuses_without_looking_at_the_prompt() -> None:
    harness = make_harness(settings={"max_live_requests": 1})
    async with in_process(harness) as client:
        harness.gate.shut()
        runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "1", "max_tokens": 1}))
        await harness.gate.reached()
        # Whatever it says, it would have been encoded first.
        refused = await client.post(COMPLETIONS, content=b'{"prompt": "x", "no_such_field": 1}')
        samples = (await client.get("/metrics")).text
        harness.gate.open()
        done = await runs

    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "server_full")
    assert 'request_rejected_total{model_name="toy",reason="server_full"} 1.0' in samples
    assert done.status_code == 200


@async_test
async def test_a_tenant_has_so_many_under_way_and_others_are_free() -> None:
    harness = make_harness(settings={"max_tenant_requests": 2})
    async with in_process(harness) as client:

        async def ask(prompts: list[str], tenant: str | None) -> tuple[int, dict, str]:
            body = {"prompt": prompts, "max_tokens": 1, "tenant": tenant}
            answer = await client.post(COMPLETIONS, json=body)
            error = answer.json().get("error", {})
            return answer.status_code, error, answer.headers.get("retry-after", "")

        too_many = await ask(["1", "2", "3"], "a")
        harness.gate.shut()
        runs = asyncio.create_task(ask(["1", "2"], "a"))
        await harness.gate.reached()
        status, error, retry = await ask(["3"], "a")
        others = [asyncio.create_task(ask(["1", "2"], tenant)) for tenant in ("b", None)]
        await eventually(lambda: harness.engine.num_live == 6)
        nameless = await ask(["x"], None)
        harness.gate.open()
        done = [await one for one in (runs, *others)]
        again = await ask(["4", "5"], "a")
        samples = (await client.get("/metrics")).text

    assert too_many[0] == 400
    assert "the body has 3 prompts, --max-tenant-requests is 2" in too_many[1]["message"]
    assert (status, error["code"], error["type"]) == (429, "tenant_busy", "rate_limit_error")
    assert retry == "1"
    assert "tenant 'a' has 2 requests under way" in error["message"]
    assert "--max-tenant-requests is 2: wait for one to end" in error["message"]
    assert "whoever names no tenant" in nameless[1]["message"]
    assert [one[0] for one in (*done, again)] == [200, 200, 200, 200]
    assert 'request_rejected_total{model_name="toy",reason="tenant_busy"} 2.0' in samples
    harness.assert_all_returned()
