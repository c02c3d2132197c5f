"""Whether steps fail again and again, so that a balancer should send requests somewhere else.

Called by the bridge for each result of the engine, and for `/ready`.
"""

from everbatch.base.clock import Clock
from everbatch.base.units import NS_PER_S

MANY_IN_A_ROW = 4
"""One bad row makes up to as many fail as there are rows, but steps between them succeed."""
REMEMBERED_S = 30.0
"""After so long without a failure the server is ready again, as nobody else would try."""


class FailedSteps:
    """Counts failures in a row."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._num_in_a_row = 0
        self._last_ns = 0

    def note(self, *, failed: bool) -> None:
        """A step has ended."""
        if failed:
            self._num_in_a_row += 1
            self._last_ns = self._clock.now_ns()
        else:
            self._num_in_a_row = 0

    def many(self) -> int | None:
        """Give how many failed in a row, if they are many and not long ago."""
        age_s = (self._clock.now_ns() - self._last_ns) / NS_PER_S
        is_many = self._num_in_a_row >= MANY_IN_A_ROW and age_s < REMEMBERED_S
        return self._num_in_a_row if is_many else None
