"""When a service manager shall let the process be, and when a new one would do better."""

import asyncio

from server.fakes import async_test, in_process, make_harness

from everbatch.assemble.server import is_well
from everbatch.server.progress import Pulse

BODY = {"prompt": "x", "max_tokens": 2}


@async_test
async def test_a_server_is_well_unless_its_engine_stands_still() -> None:
    harness = make_harness()
    num_layers_run = 0
    pulse = Pulse(harness.engine.progress, lambda: num_layers_run)
    async with in_process(harness) as client:
        idle = [is_well(harness.engine, pulse) for _ in range(2)]
        harness.gate.shut()
        answer = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await harness.gate.reached()
        in_a_step = [is_well(harness.engine, pulse) for _ in range(3)]
        num_layers_run = 1
        in_its_next_layer = [is_well(harness.engine, pulse) for _ in range(2)]
        harness.gate.open()
        await answer
        again = [is_well(harness.engine, pulse) for _ in range(2)]

    assert idle == [True, True]
    assert in_a_step == [True, False, False]
    assert in_its_next_layer == [True, False]
    assert again == [True, True]


@async_test
async def test_an_engine_that_goes_from_step_to_step_moves() -> None:
    harness = make_harness()
    pulse = Pulse(harness.engine.progress, lambda: 0)
    seen: list[bool] = []
    async with in_process(harness) as client:
        harness.executor.before_pass = lambda number: seen.extend([pulse.beats(), pulse.beats()])
        await client.post("/v1/completions", json=BODY)

    assert seen == [True, False, True, False]


@async_test
async def test_a_server_whose_engine_has_died_is_not_well() -> None:
    harness = make_harness()
    async with in_process(harness) as client:
        harness.core.step = broken  # type: ignore[method-assign]
        answer = await client.post("/v1/completions", json=BODY)

        assert answer.status_code == 500
        assert not is_well(harness.engine, Pulse(harness.engine.progress, lambda: 0))


def broken(*_: object) -> None:
    raise RuntimeError("a bug of the engine")
