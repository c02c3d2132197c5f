"""Whether the engine thread comes back from its turns, and whether it lives in a long one.

Belongs here: since when a turn runs, how long is too long, and whether the thread has moved. Not
here: what follows from it (bridge.py, and for the whole process assemble.server). `begin` and `end`
belong to the engine thread, the rest to the event loop; they share integers.
"""

import asyncio
from collections.abc import Callable

from everbatch.base.clock import Clock
from everbatch.base.units import NS_PER_S

MIN_LOOK_S, MAX_LOOK_S = 0.05, 1.0
LOOKS_IN_LIMIT = 4


class Progress:
    """Watches one thread; a turn longer than `limit_s` is a hang."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._limit_ns = int(limit_s * NS_PER_S)
        self._since_ns: int | None = None
        self.num_turns = 0
        self.look_s = min(max(MIN_LOOK_S, limit_s / LOOKS_IN_LIMIT), MAX_LOOK_S)
        """How often to look, so that a hang is seen soon after it is one."""

    def begin(self) -> None:
        """A turn begins."""
        self.num_turns += 1
        self._since_ns = self._clock.now_ns()

    def end(self) -> None:
        """The turn is over; until the next one there is nothing to wait for."""
        self._since_ns = None

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs."""
        return self._since_ns is None

    def hung_s(self) -> float | None:
        """Give how long the turn that runs has taken, if that is too long."""
        since_ns = self._since_ns
        if since_ns is None:
            return None
        taken_ns = self._clock.now_ns() - since_ns
        return taken_ns / NS_PER_S if taken_ns > self._limit_ns else None


class Pulse:
    """Whether the engine thread moves: from turn to turn, and within one from layer to layer.

    A step of many tokens on a slow machine takes long and lives; one that waits for a lock, or for
    a device that is gone, stays in its layer. A backend may run some layers at once, which then are
    counted before (kernels.native, WORK_PER_CALL).
    """

    def __init__(self, progress: Progress, num_layers_run: Callable[[], int]) -> None:
        self._progress = progress
        self._num_layers_run = num_layers_run
        self._place: tuple[int, int] | None = None

    def beats(self) -> bool:
        """Say whether the thread is idle, or elsewhere than when this was asked before."""
        before, self._place = self._place, (self._progress.num_turns, self._num_layers_run())
        return self._progress.is_idle or self._place != before


async def look_again_and_again(look: Callable[[], None], interval_s: float) -> None:
    """Call `look` every `interval_s` seconds, until cancelled."""
    while True:
        await asyncio.sleep(interval_s)
        look()
