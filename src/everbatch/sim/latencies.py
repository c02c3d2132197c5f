"""Times of requests in a run, gathered as they end, and how many met their goals.

Belongs here: TTFT, ITL, TPOT, E2E and goals. Not here: percentiles (distribution). Times are in the
clock's own integers. Called by accounts.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from everbatch.base.errors import ConfigError
from everbatch.base.units import NS_PER_S
from everbatch.sim.records import RequestRecord
from everbatch.workload.run_sections import Goals

MAX_TIME = (1 << 63) - 1
"""292 years of nanoseconds: what an array holds."""


class LongestGaps:
    """Answers how long the longest pass after some moment was, at O(1) a pass.

    Keeps those passes only that no later one is as long as.
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._gaps: list[int] = []

    def add(self, end: int, gap: int) -> None:
        """A pass has ended, `gap` after the one before."""
        gaps, ends = self._gaps, self._ends
        while gaps and gaps[-1] <= gap:
            gaps.pop()
            ends.pop()
        gaps.append(gap)
        ends.append(end)

    def since(self, moment: int) -> int:
        """Give the longest of those that ended after `moment`; 0 if there are none."""
        place = bisect_right(self._ends, moment)
        return self._gaps[place] if place < len(self._gaps) else 0


@dataclass(slots=True)
class Latencies:
    """Times of requests, in no order that matters."""

    ttft: "array[int]" = field(default_factory=lambda: array("q"))
    """Of all that emitted, from their arrival."""
    tpot: "array[float]" = field(default_factory=lambda: array("d"))
    """Of each stream with two tokens or more."""
    e2e: "array[int]" = field(default_factory=lambda: array("q"))
    """Of those that ended by stop or length."""
    num_good: int = 0
    """Requests that met all goals."""

    def copy(self) -> "Latencies":
        return Latencies(self.ttft[:], self.tpot[:], self.e2e[:], self.num_good)

    def add(self, record: RequestRecord, streams: Iterable["StreamTimes"], goals: Goals) -> None:
        """Add a request: one that has ended, or one that lives, as it is now."""
        ttft, e2e = record.ttft, record.e2e
        if ttft is not None:
            self.ttft.append(_checked(ttft))
        if e2e is not None:
            self.e2e.append(_checked(e2e))
        longest_gap, slowest = 0, 0.0
        for tpot, gap in streams:
            if tpot is not None:
                self.tpot.append(tpot)
                slowest = max(slowest, tpot)
            longest_gap = max(longest_gap, gap)
        if not goals or ttft is None or e2e is None:
            return
        reached = {"ttft": ttft, "itl": longest_gap, "tpot": slowest, "e2e": e2e}
        self.num_good += all(reached[name] <= goal for name, goal in goals.items())


class StreamTimes(NamedTuple):
    """Of one stream of tokens: mean time between two, and the longest."""

    tpot: float | None
    longest_gap: int


def _checked(time: int) -> int:
    """Refuse a time that no array holds: some size or rate is beyond all that is real."""
    if time > MAX_TIME:
        raise ConfigError(
            f"a request takes {time / NS_PER_S:.3g} s, at most {MAX_TIME / NS_PER_S:.3g} s are "
            "counted: take a faster device, or a clock of shorter steps"
        )
    return time
