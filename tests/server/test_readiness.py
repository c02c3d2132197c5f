"""A server whose engine hangs in a step is alive and not ready; who waits for it is told."""

import asyncio
import json
import logging

import httpx
import pytest
from server.fakes import async_test, eventually, in_process, make_harness, reply_to

from everbatch.base.errors import ExecutorError
from everbatch.base.units import NS_PER_S
from everbatch.server.failed_steps import MANY_IN_A_ROW, REMEMBERED_S, FailedSteps
from everbatch.server.progress import Progress

COMPLETIONS = "/v1/completions"
# The harness's clock moves by a millisecond a look, so looking is waiting.
QUICK = {"step_timeout_s": 0.05}


class HandClock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now


def test_a_turn_longer_than_the_limit_is_a_hang_until_it_ends() -> None:
    clock = HandClock()
    progress = Progress(clock, limit_s=2.0)
    idle = progress.hung_s()
    progress.begin()
    clock.now = 2 * NS_PER_S
    at_the_limit = progress.hung_s()
    clock.now += 1
    beyond = progress.hung_s()
    progress.end()

    assert (idle, at_the_limit, progress.hung_s()) == (None, None, None)
    assert beyond == pytest.approx(2.0)


@pytest.mark.parametrize(("limit_s", "look_s"), [(0.001, 0.05), (0.4, 0.1), (3_600.0, 1.0)])
def test_a_hang_is_seen_within_a_second(limit_s: float, look_s: float) -> None:
    assert Progress(HandClock(), limit_s).look_s == look_s


async def _until_status(client: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    while (answer := await client.get(path)).status_code != status:
        pass
    return answer


@async_test
async def test_a_step_that_hangs_turns_readiness_off_and_leaves_health_alone() -> None:
    harness = make_harness(settings=QUICK)
    async with in_process(harness) as client:
        before = await client.get("/ready")
        harness.gate.shut()
        runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2}))
        await harness.gate.reached()
        hangs = await _until_status(client, "/ready", 503)
        health = await client.get("/health")
        refused = await client.post(COMPLETIONS, json={"prompt": "y"})
        harness.gate.open()
        again = await _until_status(client, "/ready", 200)
        await runs
        served = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2})

    assert (before.status_code, health.status_code, again.status_code) == (200, 200, 200)
    for answer in (hangs, refused):
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("engine_hangs", "server_error")
        assert "retry-after" in answer.headers
    assert refused.status_code == 503
    assert served.json()["choices"][0]["text"] == reply_to(b"x")[:2]
    harness.assert_all_returned()


@async_test
async def test_who_waits_for_a_step_that_hangs_gets_503_and_who_runs_goes_on() -> None:
    harness = make_harness(settings=QUICK, max_num_seqs=1)
    async with in_process(harness) as client:
        harness.executor.before_pass = lambda number: harness.gate.shut() if number == 2 else None
        runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a"}))
        await harness.gate.reached()
        waits = [
            asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "b", "stream": stream}))
            for stream in (False, True)
        ]
        await eventually(lambda: harness.engine.num_live == 3)
        await _until_status(client, "/ready", 503)
        # The application looks by itself, every 50 ms here.
        answers = [await one for one in waits]
        live = harness.engine.num_live
        harness.gate.open()
        whole = await runs
        samples = (await client.get("/metrics")).text

    assert [answer.status_code for answer in answers] == [503, 503]
    assert {answer.json()["error"]["code"] for answer in answers} == {"engine_hangs"}
    assert live == 1
    assert whole.json()["choices"][0]["text"] == reply_to(b"a")
    assert 'request_aborted_total{cause="hang",model_name="toy"} 2.0' in samples
    assert harness.engine.stats.num_finished == {"stop": 1}
    harness.assert_all_returned()


def test_many_failures_in_a_row_are_remembered_until_one_step_succeeds_or_for_a_while() -> None:
    clock = HandClock()
    steps = FailedSteps(clock)
    for _ in range(MANY_IN_A_ROW - 1):
        steps.note(failed=True)
    few = steps.many()
    steps.note(failed=True)
    many = steps.many()
    clock.now = round(REMEMBERED_S * NS_PER_S)
    later = steps.many()
    steps.note(failed=True)
    again = steps.many()
    steps.note(failed=False)

    assert (few, many, later, again) == (None, MANY_IN_A_ROW, None, MANY_IN_A_ROW + 1)
    assert steps.many() is None


@async_test
async def test_steps_that_fail_again_and_again_turn_readiness_off_until_one_succeeds() -> None:
    harness = make_harness()
    broken = True

    def fail(number: int) -> None:
        if broken:
            raise ExecutorError("out of memory")

    harness.executor.before_pass = fail
    async with in_process(harness) as client:
        answers = [await client.post(COMPLETIONS, json={"prompt": "x"}) for _ in range(3)]
        unready = await client.get("/ready")
        health = await client.get("/health")
        broken = False
        served = await client.post(COMPLETIONS, json={"prompt": "x"})
        ready = await client.get("/ready")

    assert {answer.status_code for answer in answers} == {500}
    assert (unready.status_code, unready.json()["error"]["code"]) == (503, "steps_fail")
    assert (health.status_code, served.status_code, ready.status_code) == (200, 200, 200)
    harness.assert_all_returned()


def test_a_hang_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    @async_test
    async def scenario() -> None:
        harness = make_harness(settings=QUICK)
        async with in_process(harness) as client:
            harness.gate.shut()
            runs = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "x"}))
            await harness.gate.reached()
            # The application looks by itself, too.
            while not caplog.messages:
                await asyncio.sleep(0)
                harness.engine.look()
            harness.engine.look()
            refused = await runs
            harness.gate.open()
            await _until_status(client, "/ready", 200)
            harness.engine.look()
            harness.engine.look()
        assert refused.status_code == 503

    with caplog.at_level(logging.WARNING, "everbatch.server"):
        scenario()

    [hangs, again] = caplog.messages
    assert hangs.startswith("the engine has been in one step for 0.")
    assert hangs.endswith("1 request waiting for it, and new ones, get 503")
    assert again == "the engine makes progress again"


@async_test
async def test_an_idle_engine_is_ready_however_long_it_has_nothing_to_do() -> None:
    async with in_process(make_harness(settings=QUICK)) as client:
        statuses = {(await client.get("/ready")).status_code for _ in range(100)}

    assert statuses == {200}


@async_test
async def test_a_dead_engine_is_neither_alive_nor_ready() -> None:
    def die(_: int) -> None:
        raise RuntimeError("broken")

    harness = make_harness()
    harness.executor.before_pass = die
    async with in_process(harness) as client:
        await client.post(COMPLETIONS, json={"prompt": "x"})
        health, ready = await client.get("/health"), await client.get("/ready")

    assert (health.status_code, ready.status_code) == (503, 503)
    assert json.loads(health.text)["error"]["code"] == "engine_dead"


@async_test
async def test_a_server_that_drains_is_alive_and_not_ready() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        harness.engine.begin_drain()
        health, ready = await client.get("/health"), await client.get("/ready")

    assert (health.status_code, ready.status_code) == (200, 503)
    assert ready.json()["error"]["code"] == "shutting_down"
