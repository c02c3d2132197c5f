"""When a service manager shall let the process be, and when a new one would do better."""

import asyncio

from server.fakes import async_test, eventually, in_process, make_harness

from everbatch.assemble.server import is_well

BODY = {"prompt": "x", "max_tokens": 2}


@async_test
async def test_a_server_is_well_but_for_the_time_of_a_hang() -> None:
    # The harness's clock moves by a millisecond a look, so looking is waiting.
    harness = make_harness(settings={"step_timeout_s": 0.05})
    async with in_process(harness) as client:
        idle = is_well(harness.engine)
        harness.gate.shut()
        answer = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await harness.gate.reached()
        await eventually(lambda: not is_well(harness.engine))
        harness.gate.open()
        await answer
        again = is_well(harness.engine)

    assert idle and again


@async_test
async def test_a_server_whose_engine_has_died_is_not_well() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        harness.core.step = broken  # type: ignore[method-assign]
        answer = await client.post("/v1/completions", json=BODY)

        assert answer.status_code == 500
        assert not is_well(harness.engine)


def broken(*_: object) -> None:
    raise RuntimeError("a bug of the engine")
