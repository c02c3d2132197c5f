"""A bad time for a server, between two calm ones, and whether it was up to it.

Calm: as many clients as slots and some more, each asking again when it was answered. Storm: a crowd
of a thousand, of whom requests come whatever became of those before: somewhat more than the calm
rate, in bursts three times as much, each of which begins with more at once than there are places; a
third of the clients leave, some requests are malformed, some clients read slowly.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e.processes import Server
from load.asking import Asking, Shape
from load.crowd_of_clients import Crowd, Tally, read_slowly
from load.watched import MIB, Look, Span, resident_bytes

NUM_SLOTS = 64
MORE_THAN_SLOTS = 8
LOAD, BURST_LOAD = 1.3, 3.0
"""In parts of the calm rate: more than there is room for, so that slots are always taken."""
MAX_REQUESTS_PER_S = 400.0
"""A client in Python brings no more; a server that is quicker is full for a moment only."""
NUM_AT_ONCE = 650
"""Twice the places: however quick the server is, and though some leave, it must refuse some."""
TICK_S = 0.02
NUM_LONG_AT_FIRST = 8
"""So that each thread of the server that encodes long texts has met one."""
SERVER_FLAGS = (
    *("--max-num-seqs", str(NUM_SLOTS), "--max-queue-requests", "192"),
    *("--max-live-requests", "320", "--max-tenant-requests", "200"),
    *("--max-client-buffer", "64KiB", "--status-interval", "60"),
    # So few that all have been used once when the storm begins: from then on no more is needed.
    *("--num-blocks", "1024"),
)


@dataclass(frozen=True)
class Plan:
    """How long each part takes, and how many clients there are."""

    warm_s: float
    calm_s: float
    settle_s: float
    """From the beginning of the storm until what it needs has been allocated."""
    storm_s: float
    burst_every_s: float = 15.0
    burst_s: float = 4.0
    num_clients: int = 1_000
    num_slow: int = 4
    shape: Shape = field(default_factory=Shape)
    seed: int = 1


@dataclass
class Course:
    """What was seen."""

    plan: Plan
    tally: Tally = field(default_factory=Tally)
    before: Span | None = None
    storm: Span | None = None
    after: Span | None = None
    memory: list[int] = field(default_factory=list)
    """During the storm, once a second, without its beginning."""
    idle: dict[str, float] = field(default_factory=dict)
    """Metrics when all had ended."""
    offered_per_s: float = 0.0


async def weather(server: Server, plan: Plan, tell: Callable[[str], None]) -> Course:
    """Go through calm, storm and calm."""
    port = int(server.url.rpartition(":")[2])
    course, asking = Course(plan), Asking(plan.seed, plan.shape)
    crowd = Crowd(port, asking, course.tally)
    await crowd.connect(plan.num_clients)
    course.before = await _calm(server, crowd, plan.warm_s, plan.calm_s)
    tell(f"calm: {course.before.facts()}")
    course.storm = await _storm(server, crowd, course, tell)
    tell(f"storm: {course.storm.facts()}")
    tell("memory, MiB: " + " ".join(f"{size / MIB:.0f}" for size in course.memory))
    await crowd.wait()
    await _wait_until_idle(server)
    course.idle = Look.at(server.url, server.pid).samples
    course.after = await _calm(server, crowd, plan.warm_s / 2, plan.calm_s)
    tell(f"calm again: {course.after.facts()}")
    crowd.close()
    return course


async def _calm(server: Server, crowd: Crowd, warm_s: float, calm_s: float) -> Span:
    enough = asyncio.Event()
    asking = asyncio.create_task(crowd.keep_asking(NUM_SLOTS + MORE_THAN_SLOTS, enough))
    await asyncio.sleep(warm_s)
    first = await asyncio.to_thread(Look.at, server.url, server.pid)
    await asyncio.sleep(calm_s)
    span = Span(first, await asyncio.to_thread(Look.at, server.url, server.pid))
    enough.set()
    await asking
    return span


async def _storm(server: Server, crowd: Crowd, course: Course, tell: Callable[[str], None]) -> Span:
    plan, enough = course.plan, asyncio.Event()
    assert course.before is not None
    rate = min(course.before.rate("request_success_total"), MAX_REQUESTS_PER_S / BURST_LOAD)
    port = int(server.url.rpartition(":")[2])
    asking = Asking(plan.seed + 1, plan.shape)
    others = [
        asyncio.create_task(_arrive(crowd, asking, course, rate, enough)),
        asyncio.create_task(_weigh(server.pid, course, enough)),
        *(
            asyncio.create_task(read_slowly(port, asking, course.tally, enough))
            for _ in range(plan.num_slow)
        ),
    ]
    for _ in range(NUM_LONG_AT_FIRST):
        crowd.send(asking.too_long())
    await asyncio.sleep(plan.settle_s)
    first = await asyncio.to_thread(Look.at, server.url, server.pid)
    end_s = time.monotonic() + plan.storm_s
    while (left_s := end_s - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, 30.0))
        tell(f"{max(0.0, left_s):.0f} s left: {crowd.num_busy} under way, {_shown(course.tally)}")
    span = Span(first, await asyncio.to_thread(Look.at, server.url, server.pid))
    enough.set()
    await asyncio.gather(*others)
    return span


async def _arrive(
    crowd: Crowd, asking: Asking, course: Course, rate: float, enough: asyncio.Event
) -> None:
    """Let requests come as a Poisson process, whatever became of those before."""
    plan = course.plan
    begun_s = due_s = time.monotonic()
    num_sent, was_burst = 0, False
    while not enough.is_set():
        now_s = time.monotonic()
        while due_s <= now_s:
            is_burst = (due_s - begun_s) % plan.burst_every_s > plan.burst_every_s - plan.burst_s
            count = NUM_AT_ONCE if is_burst and not was_burst else 1
            for _ in range(count):
                crowd.send(asking.any())
            num_sent, was_burst = num_sent + count, is_burst
            due_s += asking.draw.expovariate(rate * (BURST_LOAD if is_burst else LOAD))
        await asyncio.sleep(TICK_S)
    course.offered_per_s = num_sent / (time.monotonic() - begun_s)


async def _weigh(pid: int, course: Course, enough: asyncio.Event) -> None:
    await asyncio.sleep(course.plan.settle_s)
    while not enough.is_set():
        course.memory.append(resident_bytes(pid))
        await asyncio.sleep(min(1.0, course.plan.storm_s / 20))


async def _wait_until_idle(server: Server) -> None:
    """Ask until nobody runs; what clients left behind goes at the next step."""
    for _ in range(500):
        if await asyncio.to_thread(server.is_idle):
            return
        await asyncio.sleep(0.02)


def _shown(tally: Tally) -> str:
    return f"{tally.num_asked:,} asked, {tally.num_ended:,} ended, {len(tally.faults)} faults"
