"""Measures a fake server: short ways to a plan, to the scripts that a server has, to records."""

import asyncio
from typing import Any

from fake_server import Asked, FakeClock, Reply, Script, listening

from everbatch.loadgen.figures import FigureOptions
from everbatch.loadgen.run import RunSettings
from everbatch.loadgen.schedule import (
    Extent,
    LengthRange,
    Pace,
    content_of,
    synthetic_requests,
)
from everbatch.loadgen.session import Finished, Plan, measure
from everbatch.loadgen.target import Target


def plan(
    url: str,
    num_requests: int | None = 1,
    *,
    rate: float | None = None,
    duration_ns: int | None = None,
    output_len: int = 3,
    settings: RunSettings | None = None,
    figures: FigureOptions | None = None,
    **more: Any,
) -> Plan:
    """Prompts of 30 tokens, answers of 3, all at once."""
    content = content_of(LengthRange(30, 30), LengthRange(output_len, output_len))
    extent = Extent(num_requests, duration_ns)
    return Plan(
        target=Target.at(url, more.pop("api_key", None)),
        endpoint=more.pop("endpoint", "completions"),
        source=more.pop("source", lambda: synthetic_requests(Pace(rate), content, extent, 0)),
        settings=settings or RunSettings(),
        figures=figures or FigureOptions(),
        **more,
    )


async def measured(script: Script, *arguments: Any, **more: Any) -> Finished:
    """Measure a server with this script, on a clock that stands still."""
    first = {"first": more.pop("first")} if "first" in more else {}
    clock = more.pop("clock", None) or FakeClock()
    async with listening(script, **first) as fake:
        return await measure(plan(fake.url, *arguments, **more), clock=clock)


def speaking(clock: FakeClock, *times_ms: float, num_tokens: int | None = None) -> Script:
    """A script that sends a token at each of these times, and counts them so unless told."""

    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin()
        for index, time in enumerate(times_ms):
            clock.to_ms(time)
            await reply.text("x", "length" if index == len(times_ms) - 1 else None)
            # What was sent must have come before the clock moves on.
            await come_through()
        await reply.usage(30, len(times_ms) if num_tokens is None else num_tokens)
        await reply.end()

    return script


async def come_through() -> None:
    """Let the loop run until what was written has been read on the other side."""
    for _ in range(20):
        await asyncio.sleep(0)


async def at_once(asked: Asked, reply: Reply) -> None:
    """Answer as many tokens as are wanted, without a pause."""
    await reply.begin()
    wanted = asked.body["max_tokens"]
    for number in range(wanted):
        await reply.text("x", "length" if number == wanted - 1 else None)
    await reply.usage(30, wanted)
    await reply.end()


def refusing(status: int, **headers: str) -> Script:
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.whole(status, {"error": {"message": f"no, {status}"}}, **headers)

    return script
