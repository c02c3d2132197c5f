"""Priority, tenants, deadlines and full queues: what a client asks for, and what it is told."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from server.fakes import Harness, async_test, eventually, in_process, make_harness

from everbatch.scheduler.config import TenantConfig

COMPLETIONS = "/v1/completions"


def order_of_ends(harness: Harness) -> Callable[[str, Awaitable[httpx.Response]], Any]:
    """Notes in which order answers come."""
    ended: list[str] = []

    async def note(name: str, answer: Awaitable[httpx.Response]) -> list[str]:
        await answer
        ended.append(name)
        return ended

    return note


async def in_one_slot(
    harness: Harness, bodies: dict[str, dict[str, Any]], headers: dict[str, dict[str, str]]
) -> list[str]:
    """Send requests that meet a busy slot, in this order; gives the order in which they end."""
    harness.executor.before_pass = lambda number: harness.gate.shut() if number == 1 else None
    note = order_of_ends(harness)
    async with in_process(harness) as client:
        blocker = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "0"}))
        await harness.gate.reached()
        tasks = []
        for name, body in bodies.items():
            tasks.append(
                asyncio.create_task(
                    note(
                        name,
                        client.post(
                            COMPLETIONS,
                            json={"prompt": name, "max_tokens": 4, **body},
                            headers=headers.get(name, {}),
                        ),
                    )
                )
            )
            live = 1 + len(tasks)
            await eventually(lambda live=live: harness.engine.num_live == live)
        harness.gate.open()
        await blocker
        ended: list[str] = (await asyncio.gather(*tasks))[0]
    return ended


@async_test
async def test_lower_priority_runs_first_under_that_policy() -> None:
    harness = make_harness(max_num_seqs=1, policy="priority")
    bodies = {"a": {"priority": 5}, "b": {}, "c": {"priority": -5}}

    assert await in_one_slot(harness, bodies, {}) == ["c", "b", "a"]


@async_test
async def test_priority_of_nothing_is_no_priority_under_every_policy() -> None:
    async with in_process(make_harness()) as client:
        none = await client.post(COMPLETIONS, json={"prompt": "x", "priority": 0})
        some = await client.post(COMPLETIONS, json={"prompt": "x", "priority": -1})

    assert none.status_code == 200
    error = some.json()["error"]
    assert (some.status_code, error["param"], error["code"]) == (400, "priority", "invalid_value")
    assert "--policy priority" in error["message"]


@async_test
async def test_tenants_take_turns_under_vtc() -> None:
    harness = make_harness(max_num_seqs=1, policy="vtc")
    bodies = {name: {"tenant": "many"} for name in ("a", "b", "c")} | {"d": {}}

    ended = await in_one_slot(harness, bodies, {"d": {"X-Tenant": "few"}})

    # First come would have let it wait for all three.
    assert ended.index("d") < ended.index("c")


@async_test
async def test_tenant_of_body_and_header_must_agree() -> None:
    async with in_process(make_harness()) as client:

        async def post(body: str | None, header: str | None) -> httpx.Response:
            headers = {} if header is None else {"X-Tenant": header}
            return await client.post(
                COMPLETIONS, json={"prompt": "x", "tenant": body}, headers=headers
            )

        equal, empty = await post("a", "a"), await post("a", "")
        differs, long = await post("a", "b"), await post(None, "x" * 129)

    assert (equal.status_code, empty.status_code) == (200, 200)
    assert (differs.status_code, long.status_code) == (400, 400)
    assert "tenant is 'a' and X-Tenant is 'b'" in differs.json()["error"]["message"]
    assert "at most 128" in long.json()["error"]["message"]


@pytest.mark.parametrize(
    ("header", "first", "second"),
    [
        ("X-Tenant", "somebody", "mine"),
        ("X-Tenant", "", "mine"),
        ("X-Priority", "-9", "5"),
        ("X-Max-Wait-S", "1000", "1"),
        ("X-Max-Total-S", "1000", "1"),
    ],
)
def test_header_before_the_gateway_s_own_is_refused(header: str, first: str, second: str) -> None:
    @async_test
    async def run() -> None:
        async with in_process(make_harness(policy="priority")) as client:
            both, twice_the_same = [
                await client.post(
                    COMPLETIONS,
                    json={"prompt": "x", "max_tokens": 1},
                    headers=[(header, one), (header.lower(), second)],
                )
                for one in (first, second)
            ]

        assert (both.status_code, twice_the_same.status_code) == (400, 200)
        told = f"{header} came with 2 values, {first!r} and {second!r}: send one"
        assert both.json()["error"]["message"] == told

    run()


@async_test
async def test_tenant_over_its_rate_is_told_when_to_come_back() -> None:
    harness = make_harness(tenants={"a": TenantConfig(max_requests_per_minute=2)})
    async with in_process(harness) as client:
        answers = [
            await client.post(COMPLETIONS, json={"prompt": "x", "tenant": "a", "max_tokens": 1})
            for _ in range(3)
        ]
        other = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert other.status_code == 200
    refused = answers[2]
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "tenant_rate")
    assert "max_requests_per_minute is 2" in error["message"]
    # Of the harness's clock a few milliseconds have passed since the first one.
    assert refused.headers["retry-after"] == "60"


@pytest.mark.parametrize("limit", [{"max_queue_requests": 1}, {"max_queue_tokens": 3}], ids=str)
def test_full_queue_is_told_with_numbers_and_when_to_come_back(limit: dict[str, int]) -> None:
    @async_test
    async def scenario() -> None:
        harness = make_harness(max_num_seqs=1, **limit)
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 1 else None
        async with in_process(harness) as client:
            runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a"}))
            await harness.gate.reached()
            body = {"prompt": "bb", "max_tokens": 1}
            waits = asyncio.create_task(client.post(COMPLETIONS, json=body))
            await eventually(lambda: harness.engine.num_live == 2)
            refused = asyncio.create_task(client.post(COMPLETIONS, json=body))
            await eventually(lambda: harness.engine.num_live == 3)
            harness.gate.open()
            answers = [await one for one in (runs, waits, refused)]
            later = await client.post(COMPLETIONS, json=body)

        assert [answer.status_code for answer in answers] == [200, 200, 429]
        error = answers[2].json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        [name, value] = next(iter(limit.items()))
        assert f"{name} {value}" in error["message"] or f"{name} is {value}" in error["message"]
        assert 1 <= int(answers[2].headers["retry-after"]) <= 60
        assert later.status_code == 200
        harness.assert_all_returned()

    scenario()


@pytest.mark.parametrize("stream", [False, True])
def test_request_that_waits_too_long_is_refused_and_one_that_runs_is_not(stream: bool) -> None:
    @async_test
    async def scenario() -> None:
        harness = make_harness(max_num_seqs=1)
        async with in_process(harness) as client:
            # The harness's clock moves by a millisecond a look: a long answer takes many.
            body = {"prompt": "a", "stream": stream, "max_wait_s": 0.05}
            runs = asyncio.create_task(client.post(COMPLETIONS, json=body))
            await eventually(lambda: harness.engine.stats.num_running == 1)
            late = await client.post(COMPLETIONS, json=body | {"prompt": "b"})
            answer = await runs
            patient = await client.post(COMPLETIONS, json=body | {"max_wait_s": 86_400})

        assert (answer.status_code, patient.status_code) == (200, 200)
        assert late.status_code == 503
        error = late.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "deadline")
        assert "max_wait_s, 0.05: come again later, or raise it" in error["message"]
        assert "retry-after" in late.headers
        assert harness.engine.stats.num_finished == {"stop": 2, "deadline": 1}
        harness.assert_all_returned()

    scenario()


@async_test
async def test_wait_may_be_limited_by_a_header() -> None:
    async with in_process(make_harness()) as client:

        async def post(header: str, body: float | None = None) -> httpx.Response:
            return await client.post(
                COMPLETIONS,
                json={"prompt": "x", "max_wait_s": body, "max_tokens": 1},
                headers={"X-Max-Wait-S": header},
            )

        good = [await post(header) for header in ("0.5", "86400", "", "60")]
        bad = [await post(header) for header in ("-1", "86401", "soon", "1e3", "nan")]
        agrees, differs = await post("2", 2.0), await post("2", 3)

    assert [answer.status_code for answer in good] == [200] * 4
    assert [answer.status_code for answer in bad] == [400] * 5
    assert "X-Max-Wait-S must be a number of seconds" in bad[0].json()["error"]["message"]
    assert (agrees.status_code, differs.status_code) == (200, 400)
