"""The time that a run measures by, and waits by.

Belongs here: the protocol and the machine's own clock; tests bring one that is wound by hand.
"""

import asyncio
import time
from typing import Protocol

from everbatch.base.units import NS_PER_S


class Clock(Protocol):
    """Integers of nanoseconds since an origin of the clock's own; it never runs backwards."""

    def now_ns(self) -> int: ...

    def cpu_ns(self) -> int:
        """Give the processor time that this process has taken so far."""
        ...

    async def sleep_until(self, time_ns: int) -> None:
        """Return at that time or soon after it; others get a turn in any case."""
        ...


class MonotonicClock:
    """The machine's clock. Event loops wake up by milliseconds, so it is up to one late."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def cpu_ns(self) -> int:
        return time.process_time_ns()

    async def sleep_until(self, time_ns: int) -> None:
        while (left := time_ns - time.monotonic_ns()) > 0:
            await asyncio.sleep(left / NS_PER_S)
        await asyncio.sleep(0)
